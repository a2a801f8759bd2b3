! Broadcasts from Fortran, by one of its bindings: 1 is mpif.h, 2 the module mpi, 3 the module mpi_f08.

program bindings
#if BINDING == 1
  implicit none
  include 'mpif.h'
#elif BINDING == 2
  use mpi
  implicit none
#else
  use mpi_f08
  implicit none
#endif
  integer, parameter :: length = 30000
  integer :: values(length), rank, ranks, root, count, error, i
#if BINDING == 3
  type(MPI_Comm) :: comm
  type(MPI_Datatype) :: row
#else
  integer :: comm, row
#endif

  call MPI_Init(error)
  call MPI_Comm_dup(MPI_COMM_WORLD, comm, error)
  call MPI_Comm_rank(comm, rank, error)
  call MPI_Comm_size(comm, ranks, error)
  call MPI_Type_vector(10, 1, 10, MPI_INTEGER, row, error)
  call MPI_Type_commit(row, error)
  do root = 0, ranks - 1
    do i = 0, 1
      count = merge(length, 100, i == 1)
      values = merge(root + 1, -1, rank == root)
      call MPI_Bcast(values, count, MPI_INTEGER, root, comm, error)
      call expect(all(values(:count) == root + 1), 'integers')
      call expect(all(values(count + 1:) == merge(root + 1, -1, rank == root)), 'integers behind the broadcast')
    end do
    values = merge(root, -1, rank == root)
    call MPI_Bcast(values(3:), 1, row, root, comm, error)
    call expect(all(values(3:93:10) == root), 'a row of a matrix')
    call expect(all(values(4:94:10) == merge(root, -1, rank == root)), 'the next row')
    call MPI_Barrier(comm, error)
  end do
  if (rank == 0) print '(a, i0, a)', 'fortran: ', 3 * ranks, ' broadcasts'
  flush (6)
  call MPI_Type_free(row, error)
  call MPI_Comm_free(comm, error)
  ! MPICH 4.0 may hang in MPI_Finalize, without the shim too.
  call alarm(5, 0)
  call MPI_Finalize(error)

contains

  subroutine expect(is_right, what)
    logical, intent(in) :: is_right
    character(*), intent(in) :: what
    if (is_right) return
    print '(3a, i0)', 'wrong: ', what, ' of root ', root
    call MPI_Abort(MPI_COMM_WORLD, 1, error)
  end subroutine
end program
