/* The functions that complete requests, in front of the MPI's own. While no broadcast of this
 * library is under way, they only pass on.
 *
 * A function of the MPI that waits would wait for ever for a request of this library, which only
 * this library completes. So a function that waits repeats the one that tests. */

#include "intercept.h"
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

static void progress_if_any(void)
{
    if (are_requests_outstanding())
        progress_requests();
}

int intercept_wait(void *request, void *status)
{
    int error, flag = 0, wait_ms = WAIT_MIN_MS;

    while (are_requests_outstanding()) {
        progress_requests();
        error = PASS_TO(test_function, "PMPI_Test")(request, &flag, status);
        if (flag || error != MPI_SUCCESS)
            return error;
        wait_for_requests(request, 1, &wait_ms);
    }
    return PASS_TO(wait_function, "PMPI_Wait")(request, status);
}

int intercept_waitall(int count, void *requests, void *statuses)
{
    int error, flag = 0, wait_ms = WAIT_MIN_MS;

    while (are_requests_outstanding()) {
        progress_requests();
        error = PASS_TO(testall_function, "PMPI_Testall")(count, requests, &flag, statuses);
        if (flag || error != MPI_SUCCESS)
            return error;
        wait_for_requests(requests, count, &wait_ms);
    }
    return PASS_TO(waitall_function, "PMPI_Waitall")(count, requests, statuses);
}

int intercept_waitany(int count, void *requests, int *index, void *status)
{
    int error, flag = 0, wait_ms = WAIT_MIN_MS;

    while (are_requests_outstanding()) {
        progress_requests();
        error = PASS_TO(testany_function, "PMPI_Testany")(count, requests, index, &flag, status);
        if (flag || error != MPI_SUCCESS)
            return error;
        wait_for_requests(requests, count, &wait_ms);
    }
    return PASS_TO(waitany_function, "PMPI_Waitany")(count, requests, index, status);
}

int intercept_waitsome(int count, void *requests, int *completed, int *indices, void *statuses)
{
    int error, wait_ms = WAIT_MIN_MS;

    while (are_requests_outstanding()) {
        progress_requests();
        error = PASS_TO(testsome_function, "PMPI_Testsome")(count, requests, completed, indices, statuses);
        if (error != MPI_SUCCESS || *completed)
            return error;
        wait_for_requests(requests, count, &wait_ms);
    }
    return PASS_TO(waitsome_function, "PMPI_Waitsome")(count, requests, completed, indices, statuses);
}

int intercept_test(void *request, int *flag, void *status)
{
    progress_if_any();
    return PASS_TO(test_function, "PMPI_Test")(request, flag, status);
}

int intercept_testall(int count, void *requests, int *flag, void *statuses)
{
    progress_if_any();
    return PASS_TO(testall_function, "PMPI_Testall")(count, requests, flag, statuses);
}

int intercept_testany(int count, void *requests, int *index, int *flag, void *status)
{
    progress_if_any();
    return PASS_TO(testany_function, "PMPI_Testany")(count, requests, index, flag, status);
}

int intercept_testsome(int count, void *requests, int *completed, int *indices, void *statuses)
{
    progress_if_any();
    return PASS_TO(testsome_function, "PMPI_Testsome")(count, requests, completed, indices, statuses);
}

int intercept_get_status(handle request, int *flag, void *status)
{
    progress_if_any();
    return PASS_TO(get_status_function, "PMPI_Request_get_status")(request, flag, status);
}

int intercept_get_status_all(int count, void *requests, int *flag, void *statuses)
{
    progress_if_any();
    return PASS_TO(testall_function, "PMPI_Request_get_status_all")(count, requests, flag, statuses);
}

int intercept_get_status_any(int count, void *requests, int *index, int *flag, void *status)
{
    progress_if_any();
    return PASS_TO(testany_function, "PMPI_Request_get_status_any")(count, requests, index, flag, status);
}

int intercept_get_status_some(int count, void *requests, int *completed, int *indices, void *statuses)
{
    progress_if_any();
    return PASS_TO(waitsome_function, "PMPI_Request_get_status_some")(count, requests, completed, indices, statuses);
}
