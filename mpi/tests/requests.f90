! Nonblocking and persistent broadcasts from Fortran's module mpi_f08, completed in several ways beside a message.

program requests
  use mpi_f08
  implicit none
  integer, parameter :: rounds = 24
  integer, asynchronous :: values(2), from, to
  integer :: rank, ranks, round, index, completed, done, indices(3)
  logical :: flag
  type(MPI_Request) :: each(3), both(2)
  type(MPI_Status) :: status, statuses(3)

  call MPI_Init()
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks)
  call MPI_Bcast_init(values(1), 1, MPI_INTEGER, 0, MPI_COMM_WORLD, MPI_INFO_NULL, both(1))
  call MPI_Bcast_init(values(2), 1, MPI_INTEGER, ranks - 1, MPI_COMM_WORLD, MPI_INFO_NULL, both(2))
  do round = 1, rounds
    values = -1
    if (rank == 0) values(1) = round
    if (rank == ranks - 1) values(2) = -round
    to = round
    if (mod(round, 2) == 0) then
      call MPI_Startall(2, both)
      each(1:2) = both
    else
      call MPI_Ibcast(values(1), 1, MPI_INTEGER, 0, MPI_COMM_WORLD, each(1))
      call MPI_Ibcast(values(2), 1, MPI_INTEGER, ranks - 1, MPI_COMM_WORLD, each(2))
    end if
    call MPI_Irecv(from, 1, MPI_INTEGER, rank, 5, MPI_COMM_WORLD, each(3))
    call MPI_Send(to, 1, MPI_INTEGER, rank, 5, MPI_COMM_WORLD)
    call complete(mod(round / 2, 6))
    if (values(1) /= round .or. values(2) /= -round .or. from /= round) then
      print '(a, 4i8)', 'wrong: ', round, values, from
      call MPI_Abort(MPI_COMM_WORLD, 1)
    end if
    call MPI_Barrier(MPI_COMM_WORLD)
  end do
  call MPI_Request_free(both(1))
  call MPI_Request_free(both(2))
  if (rank == 0) print '(a, i0, a)', 'fortran: ', 2 * rounds, ' broadcasts'
  flush (6)
  ! MPICH 4.0 may hang in MPI_Finalize, without the shim too.
  call alarm(5, 0)
  call MPI_Finalize()

contains

  subroutine complete(way)
    integer, intent(in) :: way
    select case (way)
    case (0)
      call MPI_Waitall(3, each, MPI_STATUSES_IGNORE)
    case (1)
      do done = 1, 3
        call MPI_Waitany(3, each, index, status)
      end do
    case (2)
      done = 0
      do while (done < 3)
        call MPI_Waitsome(3, each, completed, indices, statuses)
        done = done + completed
      end do
    case (3)
      flag = .false.
      do while (.not. flag)
        call MPI_Testall(3, each, flag, statuses)
      end do
    case (4)
      do done = 1, 3
        call MPI_Wait(each(4 - done), MPI_STATUS_IGNORE)
      end do
    case default
      do done = 1, 3
        flag = .false.
        do while (.not. flag)
          call MPI_Request_get_status(each(done), flag, status)
        end do
        flag = .false.
        do while (.not. flag)
          call MPI_Test(each(done), flag, status)
        end do
      end do
    end select
  end subroutine
end program
