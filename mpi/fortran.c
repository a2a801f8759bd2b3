/* Fortran's functions that complete requests, in front of the MPI's own.
 *
 * All of Open MPI's, and those of MPICH's module mpi_f08, call the functions of C by their
 * profiling names. Open MPI's mpi_f08 calls some functions of mpif.h, by the names in
 * FORTRAN_NAMES, and others by their profiling names, so its functions are defined here too. In
 * MPICH, the functions of mpif.h, and MPI_Ibcast and MPI_Bcast_init of mpi_f08, call those of C by
 * names that this library defines.
 *
 * The functions here call the MPI's own functions of Fortran, and convert only the requests.
 * Indices, logical values and the addresses of ignored statuses differ from those of C, and MPICH
 * 4.0 counts indices from 0 in mpi_f08, which a program may rely on. */

#include <stdlib.h>

#include "intercept.h"
#include "persistents.h"
#include "request.h"
#include "transfer.h"

#if (defined(MPICH_NUMVERSION) || defined(OPEN_MPI)) && !defined(MPI_ABI_VERSION)

#ifndef OPEN_MPI
/* Handles are the same numbers in C. */
#define REQUEST_IN_C(number) ((handle)(number))
#define REQUEST_IN_FORTRAN(request) (request)
#endif

/* An array of Fortran's requests as the MPI is to see it. */
struct fortran_view {
    MPI_Fint *handles, *given;
    MPI_Fint count;
    /* The program's requests in C, and as the MPI is to see them. NULL: this library has no
     * requests, and the MPI sees the program's array. */
    MPI_Request *requests;
    struct view view;
};

static void free_arrays(struct fortran_view *view)
{
    free(view->handles);
    free(view->requests);
}

/* Begins a view of the program's array; false: no memory. */
static bool begin_fortran_view(struct fortran_view *view, MPI_Fint count, MPI_Fint *requests)
{
    MPI_Fint i;

    *view = (struct fortran_view){.handles = requests, .given = requests, .count = count};
    if (count < 1 || (!are_requests_outstanding() && !are_persistents_kept()))
        return true;
    view->handles = malloc((size_t)count * sizeof *view->handles);
    view->requests = malloc((size_t)count * sizeof *view->requests);
    for (i = 0; i < count && view->requests; i++)
        view->requests[i] = (MPI_Request)REQUEST_IN_C(requests[i]);
    if (!view->handles || !view->requests || !begin_view(&view->view, (int)count, view->requests)) {
        free_arrays(view);
        return false;
    }
    for (i = 0; i < count; i++) {
        MPI_Request seen = view->view.handles[i];

        view->handles[i] = seen == view->requests[i] ? requests[i] : REQUEST_IN_FORTRAN(seen);
    }
    return true;
}

/* Ends it after a call that may have completed requests. */
static void end_fortran_view(struct fortran_view *view)
{
    MPI_Fint i;

    if (!view->requests)
        return;
    for (i = 0; i < view->count; i++)
        view->view.handles[i] = (MPI_Request)REQUEST_IN_C(view->handles[i]);
    end_view(&view->view, MPI_SUCCESS);
    for (i = 0; i < view->count; i++)
        if (view->requests[i] != (MPI_Request)REQUEST_IN_C(view->given[i]))
            view->given[i] = REQUEST_IN_FORTRAN(view->requests[i]);
    free_arrays(view);
}

/* Whether to test repeatedly instead of waiting in the MPI. */
static bool is_outstanding(const struct fortran_view *view)
{
    return view->requests && are_requests_outstanding();
}

/* The MPI's own function, by one of two macros: of mpi_f08, or of mpif.h and the module mpi. */
#define OWN(own, name) FOUND_ONCE(name##_of_fortran_function, own(name))
#define OWN_F08(name) mpi_next("mpi_" #name "_f08_")

#define DECLARE(name, parameters)                        \
    typedef void name##_of_fortran_function parameters;  \
    name##_of_fortran_function f08_##name INTERCEPT(mpi_##name##_f08_);

/* A function that tests requests. */
#define TEST(function, own, name, count, parameters, arguments)        \
    void function parameters                                           \
    {                                                                  \
        MPI_Fint result = MPI_ERR_NO_MEM;                              \
        struct fortran_view view;                                      \
                                                                       \
        if (begin_fortran_view(&view, count, requests)) {              \
            progress_if_any();                                         \
            requests = view.handles;                                   \
            OWN(own, name) arguments;                                  \
            end_fortran_view(&view);                                   \
        }                                                              \
        if (error)                                                     \
            *error = result;                                           \
    }

/* A function that waits for requests: repeats the one that tests, as those of C do (complete.c).
 * `is_done` is the result of the test. */
#define WAIT(function, own, name, count, parameters, arguments, test, test_arguments, is_done)    \
    void function parameters                                                                      \
    {                                                                                             \
        MPI_Fint result = MPI_ERR_NO_MEM, flag = 0;                                               \
        int wait_ms = WAIT_MIN_MS;                                                                \
        struct fortran_view view;                                                                 \
                                                                                                  \
        if (begin_fortran_view(&view, count, requests)) {                                         \
            result = MPI_SUCCESS;                                                                 \
            requests = view.handles;                                                              \
            while (!flag && result == MPI_SUCCESS && is_outstanding(&view)) {                     \
                progress_requests();                                                              \
                OWN(own, test) test_arguments;                                                    \
                flag = (is_done);                                                                 \
                if (!flag && result == MPI_SUCCESS)                                               \
                    wait_for_requests(view.view.handles, (int)(count), &wait_ms);                 \
            }                                                                                     \
            if (!flag && result == MPI_SUCCESS)                                                   \
                OWN(own, name) arguments;                                                         \
            end_fortran_view(&view);                                                              \
        }                                                                                         \
        if (error)                                                                                \
            *error = result;                                                                      \
    }

#define GET_STATUS(function, own)                                                                         \
    void function(const MPI_Fint *request, MPI_Fint *flag, void *status, MPI_Fint *error)                 \
    {                                                                                                     \
        MPI_Fint seen = *request, result;                                                                 \
                                                                                                          \
        progress_if_any();                                                                                \
        if (are_persistents_kept())                                                                       \
            seen = REQUEST_IN_FORTRAN((MPI_Request)seen_by_mpi(REQUEST_IN_C(seen)));                      \
        OWN(own, request_get_status)(&seen, flag, status, &result);                                       \
        if (error)                                                                                        \
            *error = result;                                                                              \
    }

#define TESTS(DO)                                                                                                              \
    DO(test, 1, (MPI_Fint * requests, MPI_Fint * flag, void *status, MPI_Fint *error), (requests, flag, status, &result))      \
    DO(testall, *count, (const MPI_Fint *count, MPI_Fint *requests, MPI_Fint *flag, void *statuses, MPI_Fint *error),          \
       (count, requests, flag, statuses, &result))                                                                             \
    DO(testany, *count,                                                                                                        \
       (const MPI_Fint *count, MPI_Fint *requests, MPI_Fint *index, MPI_Fint *flag, void *status, MPI_Fint *error),            \
       (count, requests, index, flag, status, &result))                                                                        \
    DO(testsome, *count,                                                                                                       \
       (const MPI_Fint *count, MPI_Fint *requests, MPI_Fint *completed, MPI_Fint *indices, void *statuses, MPI_Fint *error),   \
       (count, requests, completed, indices, statuses, &result))

#define WAITS(DO)                                                                                                              \
    DO(wait, 1, (MPI_Fint * requests, void *status, MPI_Fint *error), (requests, status, &result),                             \
       test, (requests, &flag, status, &result), flag)                                                                         \
    DO(waitall, *count, (const MPI_Fint *count, MPI_Fint *requests, void *statuses, MPI_Fint *error),                          \
       (count, requests, statuses, &result), testall, (count, requests, &flag, statuses, &result), flag)                       \
    DO(waitany, *count, (const MPI_Fint *count, MPI_Fint *requests, MPI_Fint *index, void *status, MPI_Fint *error),           \
       (count, requests, index, status, &result), testany, (count, requests, index, &flag, status, &result), flag)             \
    DO(waitsome, *count,                                                                                                       \
       (const MPI_Fint *count, MPI_Fint *requests, MPI_Fint *completed, MPI_Fint *indices, void *statuses, MPI_Fint *error),   \
       (count, requests, completed, indices, statuses, &result), testsome,                                                     \
       (count, requests, completed, indices, statuses, &result), *completed)

#define F08_TEST(name, count, parameters, arguments) \
    DECLARE(name, parameters)                        \
    TEST(f08_##name, OWN_F08, name, count, parameters, arguments)
#define F08_WAIT(name, count, parameters, arguments, test, test_arguments, is_done) \
    DECLARE(name, parameters)                                                       \
    WAIT(f08_##name, OWN_F08, name, count, parameters, arguments, test, test_arguments, is_done)

TESTS(F08_TEST)
WAITS(F08_WAIT)
DECLARE(request_get_status, (const MPI_Fint *request, MPI_Fint *flag, void *status, MPI_Fint *error))
GET_STATUS(f08_request_get_status, OWN_F08)

#ifdef OPEN_MPI

/* The names of mpif.h, which the module mpi has too. */
#define OWN_F77(name) mpi_required("pmpi_" #name "_")
#define F77_TEST(name, count, parameters, arguments)                \
    static __attribute__((used)) name##_of_fortran_function f77_##name; \
    static TEST(f77_##name, OWN_F77, name, count, parameters, arguments)
#define F77_WAIT(name, count, parameters, arguments, test, test_arguments, is_done) \
    static __attribute__((used)) name##_of_fortran_function f77_##name;                 \
    static WAIT(f77_##name, OWN_F77, name, count, parameters, arguments, test, test_arguments, is_done)

TESTS(F77_TEST)
WAITS(F77_WAIT)
static __attribute__((used)) request_get_status_of_fortran_function f77_request_get_status;
static GET_STATUS(f77_request_get_status, OWN_F77)

FORTRAN_NAMES(f77_test, test, TEST)
FORTRAN_NAMES(f77_testall, testall, TESTALL)
FORTRAN_NAMES(f77_testany, testany, TESTANY)
FORTRAN_NAMES(f77_testsome, testsome, TESTSOME)
FORTRAN_NAMES(f77_wait, wait, WAIT)
FORTRAN_NAMES(f77_waitall, waitall, WAITALL)
FORTRAN_NAMES(f77_waitany, waitany, WAITANY)
FORTRAN_NAMES(f77_waitsome, waitsome, WAITSOME)
FORTRAN_NAMES(f77_request_get_status, request_get_status, REQUEST_GET_STATUS)

#else

/* A function that is C's, where the process's MPI has this interface. */
#define AS_IN_C(name, parameters, arguments, call) \
    DECLARE(name, parameters)                      \
    void f08_##name parameters                     \
    {                                              \
        int result;                                \
                                                   \
        if (!mpi_find()) {                         \
            OWN(OWN_F08, name) arguments;          \
            return;                                \
        }                                          \
        result = call;                             \
        if (error)                                 \
            *error = result;                       \
    }

AS_IN_C(start, (MPI_Request *request, MPI_Fint *error), (request, error), MPI_Start(request))
AS_IN_C(startall, (const MPI_Fint *count, MPI_Request *requests, MPI_Fint *error), (count, requests, error), MPI_Startall(*count, requests))
AS_IN_C(request_free, (MPI_Request *request, MPI_Fint *error), (request, error), MPI_Request_free(request))
AS_IN_C(barrier, (const MPI_Comm *comm, MPI_Fint *error), (comm, error), MPI_Barrier(*comm))

#endif

#endif
