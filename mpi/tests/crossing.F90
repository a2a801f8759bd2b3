! Broadcasts that start in C and are completed in Fortran, and the opposite, by one of Fortran's
! bindings: 1 is mpif.h, 2 the module mpi, 3 the module mpi_f08.

#if BINDING == 3
#define REQUEST type(MPI_Request)
#define NUMBER(handle) handle%MPI_VAL
#define AND_ERROR
#else
#define REQUEST integer
#define NUMBER(handle) handle
#define AND_ERROR , error
#endif

program crossing
#if BINDING == 2
  use mpi
#elif BINDING == 3
  use mpi_f08
#endif
  implicit none
#if BINDING == 1
  include 'mpif.h'
#endif
  integer, parameter :: rounds = 12
  integer, asynchronous :: values(1)
  integer :: rank, round, given, taken, error
  logical :: flag
  REQUEST :: request
  external :: start_in_c, value_of_c, complete_in_c

  call MPI_Init(error)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank AND_ERROR)
  ! Makes the groups, which nonblocking broadcasts do not.
  values = 0
  call MPI_Bcast(values, 1, MPI_INTEGER, 0, MPI_COMM_WORLD AND_ERROR)
  do round = 1, rounds
    given = -1
    if (rank == 0) given = round
    call start_in_c(NUMBER(MPI_COMM_WORLD), given, NUMBER(request))
    if (mod(round, 2) == 0) then
      call MPI_Wait(request, MPI_STATUS_IGNORE AND_ERROR)
    else
      flag = .false.
      do while (.not. flag)
        call MPI_Test(request, flag, MPI_STATUS_IGNORE AND_ERROR)
      end do
    end if
    call value_of_c(taken)
    call expect(taken == round .and. request == MPI_REQUEST_NULL)
    values = -1
    if (rank == 0) values = round
    call MPI_Ibcast(values, 1, MPI_INTEGER, 0, MPI_COMM_WORLD, request AND_ERROR)
    call complete_in_c(NUMBER(request))
    call expect(values(1) == round .and. request == MPI_REQUEST_NULL)
  end do
  if (rank == 0) print '(a, i0, a)', 'crossing: ', 2 * rounds, ' broadcasts'
  flush (6)
  ! MPICH 4.0 may hang in MPI_Finalize, without the shim too.
  call alarm(5, 0)
  call MPI_Finalize(error)

contains

  subroutine expect(is_right)
    logical, intent(in) :: is_right
    if (is_right) return
    print '(a, i8)', 'wrong: ', round
    call MPI_Abort(MPI_COMM_WORLD, 1 AND_ERROR)
  end subroutine
end program
