/* The functions that complete requests, in front of the MPI's own. While no broadcast of this
 * library is under way, they only pass on.
 *
 * A function of the MPI that waits would wait for ever for a request of this library, which only
 * this library completes. So a function that waits repeats the one that tests. Of a persistent
 * broadcast, the MPI sees the request that its start has made (persistents.h). */

#include "intercept.h"
#include "persistents.h"
#include "request.h"
#include "transfer.h"

typedef int wait_function(void *request, void *status);
typedef int waitall_function(int count, void *requests, void *statuses);
typedef int waitany_function(int count, void *requests, int *index, void *status);
typedef int waitsome_function(int count, void *requests, int *completed, int *indices, void *statuses);
typedef int test_function(void *request, int *flag, void *status);
typedef int testall_function(int count, void *requests, int *flag, void *statuses);
typedef int testany_function(int count, void *requests, int *index, int *flag, void *status);
typedef waitsome_function testsome_function;
typedef int get_status_function(handle request, int *flag, void *status);

wait_function intercept_wait INTERCEPT(MPI_Wait);
waitall_function intercept_waitall INTERCEPT(MPI_Waitall);
waitany_function intercept_waitany INTERCEPT(MPI_Waitany);
waitsome_function intercept_waitsome INTERCEPT(MPI_Waitsome);
test_function intercept_test INTERCEPT(MPI_Test);
testall_function intercept_testall INTERCEPT(MPI_Testall);
testany_function intercept_testany INTERCEPT(MPI_Testany);
testsome_function intercept_testsome INTERCEPT(MPI_Testsome);
get_status_function intercept_get_status INTERCEPT(MPI_Request_get_status);
testall_function intercept_get_status_all INTERCEPT(MPI_Request_get_status_all);
testany_function intercept_get_status_any INTERCEPT(MPI_Request_get_status_any);
waitsome_function intercept_get_status_some INTERCEPT(MPI_Request_get_status_some);

int intercept_wait(void *request, void *status)
{
    struct view view;
    int error, flag = 0, wait_ms = WAIT_MIN_MS;

    if (!begin_view(&view, 1, request))
        return MPI_ERR_NO_MEM;
    while (are_requests_outstanding()) {
        progress_requests();
        error = PASS_TO(test_function, "PMPI_Test")(view.handles, &flag, status);
        if (flag || error != MPI_SUCCESS)
            return end_view(&view, error);
        wait_for_requests(view.handles, 1, &wait_ms);
    }
    return end_view(&view, PASS_TO(wait_function, "PMPI_Wait")(view.handles, status));
}

int intercept_waitall(int count, void *requests, void *statuses)
{
    struct view view;
    int error, flag = 0, wait_ms = WAIT_MIN_MS;

    if (!begin_view(&view, count, requests))
        return MPI_ERR_NO_MEM;
    while (are_requests_outstanding()) {
        progress_requests();
        error = PASS_TO(testall_function, "PMPI_Testall")(count, view.handles, &flag, statuses);
        if (flag || error != MPI_SUCCESS)
            return end_view(&view, error);
        wait_for_requests(view.handles, count, &wait_ms);
    }
    return end_view(&view, PASS_TO(waitall_function, "PMPI_Waitall")(count, view.handles, statuses));
}

int intercept_waitany(int count, void *requests, int *index, void *status)
{
    struct view view;
    int error, flag = 0, wait_ms = WAIT_MIN_MS;

    if (!begin_view(&view, count, requests))
        return MPI_ERR_NO_MEM;
    while (are_requests_outstanding()) {
        progress_requests();
        error = PASS_TO(testany_function, "PMPI_Testany")(count, view.handles, index, &flag, status);
        if (flag || error != MPI_SUCCESS)
            return end_view(&view, error);
        wait_for_requests(view.handles, count, &wait_ms);
    }
    return end_view(&view, PASS_TO(waitany_function, "PMPI_Waitany")(count, view.handles, index, status));
}

int intercept_waitsome(int count, void *requests, int *completed, int *indices, void *statuses)
{
    struct view view;
    int error, wait_ms = WAIT_MIN_MS;

    if (!begin_view(&view, count, requests))
        return MPI_ERR_NO_MEM;
    while (are_requests_outstanding()) {
        progress_requests();
        error = PASS_TO(testsome_function, "PMPI_Testsome")(count, view.handles, completed, indices, statuses);
        if (error != MPI_SUCCESS || *completed)
            return end_view(&view, error);
        wait_for_requests(view.handles, count, &wait_ms);
    }
    return end_view(&view, PASS_TO(waitsome_function, "PMPI_Waitsome")(count, view.handles, completed, indices, statuses));
}

int intercept_test(void *request, int *flag, void *status)
{
    struct view view;

    if (!begin_view(&view, 1, request))
        return MPI_ERR_NO_MEM;
    progress_if_any();
    return end_view(&view, PASS_TO(test_function, "PMPI_Test")(view.handles, flag, status));
}

int intercept_testall(int count, void *requests, int *flag, void *statuses)
{
    struct view view;

    if (!begin_view(&view, count, requests))
        return MPI_ERR_NO_MEM;
    progress_if_any();
    return end_view(&view, PASS_TO(testall_function, "PMPI_Testall")(count, view.handles, flag, statuses));
}

int intercept_testany(int count, void *requests, int *index, int *flag, void *status)
{
    struct view view;

    if (!begin_view(&view, count, requests))
        return MPI_ERR_NO_MEM;
    progress_if_any();
    return end_view(&view, PASS_TO(testany_function, "PMPI_Testany")(count, view.handles, index, flag, status));
}

int intercept_testsome(int count, void *requests, int *completed, int *indices, void *statuses)
{
    struct view view;

    if (!begin_view(&view, count, requests))
        return MPI_ERR_NO_MEM;
    progress_if_any();
    return end_view(&view, PASS_TO(testsome_function, "PMPI_Testsome")(count, view.handles, completed, indices, statuses));
}

int intercept_get_status(handle request, int *flag, void *status)
{
    progress_if_any();
    return PASS_TO(get_status_function, "PMPI_Request_get_status")(seen_by_mpi(request), flag, status);
}

int intercept_get_status_all(int count, void *requests, int *flag, void *statuses)
{
    struct view view;

    if (!begin_view(&view, count, requests))
        return MPI_ERR_NO_MEM;
    progress_if_any();
    return end_view(&view, PASS_TO(testall_function, "PMPI_Request_get_status_all")(count, view.handles, flag, statuses));
}

int intercept_get_status_any(int count, void *requests, int *index, int *flag, void *status)
{
    struct view view;

    if (!begin_view(&view, count, requests))
        return MPI_ERR_NO_MEM;
    progress_if_any();
    return end_view(&view, PASS_TO(testany_function, "PMPI_Request_get_status_any")(count, view.handles, index, flag, status));
}

int intercept_get_status_some(int count, void *requests, int *completed, int *indices, void *statuses)
{
    struct view view;

    if (!begin_view(&view, count, requests))
        return MPI_ERR_NO_MEM;
    progress_if_any();
    return end_view(&view, PASS_TO(waitsome_function, "PMPI_Request_get_status_some")(count, view.handles, completed, indices, statuses));
}
