! Broadcasts and other collectives from Fortran, by one of its bindings: 1 is mpif.h, 2 the module mpi, 3 the module mpi_f08.

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
  integer :: own, sum_of_ranks, total
  integer, allocatable :: blocks(:)
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
  call short_collectives()
  if (rank == 0) print '(a, i0, a)', 'fortran: ', 3 * ranks, ' broadcasts'
  flush (6)
  call MPI_Type_free(row, error)
  call MPI_Comm_free(comm, error)
  ! MPICH 4.0 may hang in MPI_Finalize, without the shim too.
  call alarm(5, 0)
  call MPI_Finalize(error)

contains

  ! All-gathers, reduces and all-reduces, also in place.
  subroutine short_collectives()
    allocate (blocks(ranks))
    sum_of_ranks = ranks * (ranks - 1) / 2
    do root = 0, ranks - 1
      own = rank + root
      blocks = -1
      call MPI_Allgather(own, 1, MPI_INTEGER, blocks(1), 1, MPI_INTEGER, comm, error)
      call expect(all(blocks == [(i + root, i = 0, ranks - 1)]), 'an all-gather')
      blocks = -1
      blocks(rank + 1) = rank
      call MPI_Allgather(MPI_IN_PLACE, 1, MPI_INTEGER, blocks(1), 1, MPI_INTEGER, comm, error)
      call expect(all(blocks == [(i, i = 0, ranks - 1)]), 'an all-gather in place')
      call MPI_Allreduce(own, total, 1, MPI_INTEGER, MPI_SUM, comm, error)
      call expect(total == sum_of_ranks + ranks * root, 'an all-reduce')
      total = own
      call MPI_Allreduce(MPI_IN_PLACE, total, 1, MPI_INTEGER, MPI_MAX, comm, error)
      call expect(total == ranks - 1 + root, 'an all-reduce in place')
      total = -1
      call MPI_Reduce(own, total, 1, MPI_INTEGER, MPI_SUM, root, comm, error)
      call expect(total == merge(sum_of_ranks + ranks * root, -1, rank == root), 'a reduce')
      total = merge(own, -1, rank == root)
      if (rank == root) then
        call MPI_Reduce(MPI_IN_PLACE, total, 1, MPI_INTEGER, MPI_SUM, root, comm, error)
      else
        call MPI_Reduce(own, total, 1, MPI_INTEGER, MPI_SUM, root, comm, error)
      end if
      call expect(total == merge(sum_of_ranks + ranks * root, -1, rank == root), 'a reduce in place')
    end do
  end subroutine

  subroutine expect(is_right, what)
    logical, intent(in) :: is_right
    character(*), intent(in) :: what
    if (is_right) return
    print '(3a, i0)', 'wrong: ', what, ' of root ', root
    call MPI_Abort(MPI_COMM_WORLD, 1, error)
  end subroutine
end program
