/* Fortran's module mpi_f08 of MPICH: its functions that complete, start or free requests, and its
 * MPI_Barrier, call those of C by their profiling names, although its MPI_Ibcast and MPI_Bcast_init
 * do not. So they are defined here.
 *
 * The module's own functions are called for all that is not about broadcasts, since C and Fortran
 * have different statuses that are ignored, and MPICH 4.0 counts indices from 0 in this module, which
 * a program may rely on. Open MPI's module has the same names: then nothing is outstanding, and all
 * calls are passed on. */

#include "intercept.h"
#include "persistents.h"
#include "request.h"
#include "transfer.h"

#if defined(MPICH_NUMVERSION) && !defined(MPI_ABI_VERSION)

#define OWN(name) FOUND_ONCE(name##_f08_function, mpi_next("mpi_" #name "_f08_"))

#define DECLARE(name, parameters)                  \
    typedef void name##_f08_function parameters;   \
    name##_f08_function f08_##name INTERCEPT(mpi_##name##_f08_);

/* A function that tests requests. */
#define TEST(name, count, parameters, arguments)                       \
    DECLARE(name, parameters)                                          \
    void f08_##name parameters                                         \
    {                                                                  \
        MPI_Fint result = MPI_ERR_NO_MEM;                              \
        struct view view;                                              \
                                                                       \
        if (begin_view(&view, count, requests)) {                      \
            progress_if_any();                                         \
            requests = view.handles;                                   \
            OWN(name) arguments;                                       \
            end_view(&view, result);                                   \
        }                                                              \
        if (error)                                                     \
            *error = result;                                           \
    }

/* A function that waits for requests: repeats the one that tests, as those of C do (complete.c).
 * `is_done` is the result of the test. */
#define WAIT(name, count, parameters, arguments, test, test_arguments, is_done)                   \
    DECLARE(name, parameters)                                                                     \
    void f08_##name parameters                                                                    \
    {                                                                                             \
        MPI_Fint result = MPI_ERR_NO_MEM, flag = 0;                                               \
        int wait_ms = WAIT_MIN_MS;                                                                \
        struct view view;                                                                         \
                                                                                                  \
        if (begin_view(&view, count, requests)) {                                                 \
            result = MPI_SUCCESS;                                                                 \
            requests = view.handles;                                                              \
            while (!flag && result == MPI_SUCCESS && are_requests_outstanding()) {                \
                progress_requests();                                                              \
                OWN(test) test_arguments;                                                         \
                flag = (is_done);                                                                 \
                if (!flag && result == MPI_SUCCESS)                                               \
                    wait_for_requests(requests, count, &wait_ms);                                 \
            }                                                                                     \
            if (!flag && result == MPI_SUCCESS)                                                   \
                OWN(name) arguments;                                                              \
            end_view(&view, result);                                                              \
        }                                                                                         \
        if (error)                                                                                \
            *error = result;                                                                      \
    }

/* A function that is C's, where the process's MPI has this interface. */
#define AS_IN_C(name, parameters, arguments, call) \
    DECLARE(name, parameters)                      \
    void f08_##name parameters                     \
    {                                              \
        int result;                                \
                                                   \
        if (!mpi_find()) {                         \
            OWN(name) arguments;                   \
            return;                                \
        }                                          \
        result = call;                             \
        if (error)                                 \
            *error = result;                       \
    }

TEST(test, 1, (MPI_Request *requests, MPI_Fint *flag, MPI_Status *status, MPI_Fint *error), (requests, flag, status, &result))
TEST(testall, *count, (const MPI_Fint *count, MPI_Request *requests, MPI_Fint *flag, MPI_Status *statuses, MPI_Fint *error),
     (count, requests, flag, statuses, &result))
TEST(testany, *count,
     (const MPI_Fint *count, MPI_Request *requests, MPI_Fint *index, MPI_Fint *flag, MPI_Status *status, MPI_Fint *error),
     (count, requests, index, flag, status, &result))
TEST(testsome, *count,
     (const MPI_Fint *count, MPI_Request *requests, MPI_Fint *completed, MPI_Fint *indices, MPI_Status *statuses, MPI_Fint *error),
     (count, requests, completed, indices, statuses, &result))

WAIT(wait, 1, (MPI_Request *requests, MPI_Status *status, MPI_Fint *error), (requests, status, &result),
     test, (requests, &flag, status, &result), flag)
WAIT(waitall, *count, (const MPI_Fint *count, MPI_Request *requests, MPI_Status *statuses, MPI_Fint *error),
     (count, requests, statuses, &result), testall, (count, requests, &flag, statuses, &result), flag)
WAIT(waitany, *count, (const MPI_Fint *count, MPI_Request *requests, MPI_Fint *index, MPI_Status *status, MPI_Fint *error),
     (count, requests, index, status, &result), testany, (count, requests, index, &flag, status, &result), flag)
WAIT(waitsome, *count,
     (const MPI_Fint *count, MPI_Request *requests, MPI_Fint *completed, MPI_Fint *indices, MPI_Status *statuses, MPI_Fint *error),
     (count, requests, completed, indices, statuses, &result), testsome,
     (count, requests, completed, indices, statuses, &result), *completed)

DECLARE(request_get_status, (const MPI_Request *request, MPI_Fint *flag, MPI_Status *status, MPI_Fint *error))
void f08_request_get_status(const MPI_Request *request, MPI_Fint *flag, MPI_Status *status, MPI_Fint *error)
{
    MPI_Request seen = (MPI_Request)seen_by_mpi((handle)*request);

    progress_if_any();
    OWN(request_get_status)(&seen, flag, status, error);
}

AS_IN_C(start, (MPI_Request *request, MPI_Fint *error), (request, error), MPI_Start(request))
AS_IN_C(startall, (const MPI_Fint *count, MPI_Request *requests, MPI_Fint *error), (count, requests, error), MPI_Startall(*count, requests))
AS_IN_C(request_free, (MPI_Request *request, MPI_Fint *error), (request, error), MPI_Request_free(request))
AS_IN_C(barrier, (const MPI_Comm *comm, MPI_Fint *error), (comm, error), MPI_Barrier(*comm))

#endif
