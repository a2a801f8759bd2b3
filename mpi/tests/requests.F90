! Nonblocking and persistent broadcasts from Fortran, completed in several ways beside a message, by one of its bindings: 1 is
! mpif.h, 2 the module mpi, 3 the module mpi_f08, where the last argument may be absent.

#if BINDING == 3
#define REQUEST type(MPI_Request)
#define STATUS type(MPI_Status)
#define STATUSES type(MPI_Status), dimension(3)
#define AND_ERROR
#else
#define REQUEST integer
#define STATUS integer, dimension(MPI_STATUS_SIZE)
#define STATUSES integer, dimension(MPI_STATUS_SIZE, 3)
#define AND_ERROR , error
#endif
! Open MPI 4.1 has persistent broadcasts as an extension.
#ifdef EXTENSION
#define MPI_Bcast_init MPIX_Bcast_init
#endif

program requests
#if BINDING == 2
  use mpi
#elif BINDING == 3
  use mpi_f08
#endif
#if BINDING == 2 && defined(EXTENSION)
  use mpi_ext
#elif BINDING == 3 && defined(EXTENSION)
  use mpi_f08_ext
#endif
  implicit none
#if BINDING == 1
  include 'mpif.h'
#endif
  integer, parameter :: rounds = 24
  integer, asynchronous :: values(2), from, to
  integer :: rank, ranks, round, index, completed, done, indices(3), error
  logical :: flag
  REQUEST :: each(3), both(2)
  STATUS :: one
  STATUSES :: all

  call MPI_Init(error)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank AND_ERROR)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks AND_ERROR)
  call MPI_Bcast_init(values(1), 1, MPI_INTEGER, 0, MPI_COMM_WORLD, MPI_INFO_NULL, both(1) AND_ERROR)
  call MPI_Bcast_init(values(2), 1, MPI_INTEGER, ranks - 1, MPI_COMM_WORLD, MPI_INFO_NULL, both(2) AND_ERROR)
  do round = 1, rounds
    values = -1
    if (rank == 0) values(1) = round
    if (rank == ranks - 1) values(2) = -round
    to = round
    if (mod(round, 2) == 0) then
      if (mod(round, 4) == 0) then
        call MPI_Startall(2, both AND_ERROR)
      else
        call MPI_Start(both(1) AND_ERROR)
        call MPI_Start(both(2) AND_ERROR)
      end if
      each(1:2) = both
    else
      call MPI_Ibcast(values(1), 1, MPI_INTEGER, 0, MPI_COMM_WORLD, each(1) AND_ERROR)
      call MPI_Ibcast(values(2), 1, MPI_INTEGER, ranks - 1, MPI_COMM_WORLD, each(2) AND_ERROR)
    end if
    call MPI_Irecv(from, 1, MPI_INTEGER, rank, 5, MPI_COMM_WORLD, each(3) AND_ERROR)
    call MPI_Send(to, 1, MPI_INTEGER, rank, 5, MPI_COMM_WORLD AND_ERROR)
    call complete(mod(round / 2, 8))
    if (values(1) /= round .or. values(2) /= -round .or. from /= round) then
      print '(a, 4i8)', 'wrong: ', round, values, from
      call MPI_Abort(MPI_COMM_WORLD, 1 AND_ERROR)
    end if
    call MPI_Barrier(MPI_COMM_WORLD AND_ERROR)
  end do
  call MPI_Request_free(both(1) AND_ERROR)
  call MPI_Request_free(both(2) AND_ERROR)
  if (rank == 0) print '(a, i0, a)', 'fortran: ', 2 * rounds, ' broadcasts'
  flush (6)
  ! MPICH 4.0 may hang in MPI_Finalize, without the shim too.
  call alarm(5, 0)
  call MPI_Finalize(error)

contains

  subroutine complete(way)
    integer, intent(in) :: way
    select case (way)
    case (0)
      call MPI_Waitall(3, each, MPI_STATUSES_IGNORE AND_ERROR)
    case (1)
      do done = 1, 3
        call MPI_Waitany(3, each, index, one AND_ERROR)
      end do
    case (2)
      done = 0
      do while (done < 3)
        call MPI_Waitsome(3, each, completed, indices, all AND_ERROR)
        done = done + completed
      end do
    case (3)
      flag = .false.
      do while (.not. flag)
        call MPI_Testall(3, each, flag, all AND_ERROR)
      end do
    case (4)
      do done = 1, 3
        call MPI_Wait(each(4 - done), MPI_STATUS_IGNORE AND_ERROR)
      end do
    case (5)
      done = 0
      do while (done < 3)
        call MPI_Testany(3, each, index, flag, one AND_ERROR)
        if (flag) done = done + 1
      end do
    case (6)
      done = 0
      do while (done < 3)
        call MPI_Testsome(3, each, completed, indices, all AND_ERROR)
        done = done + completed
      end do
    case default
      do done = 1, 3
        flag = .false.
        do while (.not. flag)
          call MPI_Request_get_status(each(done), flag, one AND_ERROR)
        end do
        flag = .false.
        do while (.not. flag)
          call MPI_Test(each(done), flag, one AND_ERROR)
        end do
      end do
    end select
  end subroutine
end program
