#define _GNU_SOURCE

#include "call.h"

#include "choice.h"
#include "clock.h"
#include "prepare.h"
#include "request.h"
#include "roots.h"
#include "settings.h"
#include "transfer.h"

enum outcome judge(MPI_Comm comm, int root, uint64_t bytes)
{
    int is_intercommunicator, size;

    if (!settings()->is_on || settings()->choice == CHOICE_NEVER || are_communicators_closed())
        return SWITCHED_OFF;
    if (!bytes)
        return NO_BYTES;
    /* The MPI says what is wrong with an invalid communicator or root. */
    if (comm == MPI_COMM_NULL || mpi.Comm_test_inter(comm, &is_intercommunicator) != MPI_SUCCESS || is_intercommunicator)
        return INTERCOMMUNICATOR;
    mpi.Comm_size(comm, &size);
    if (size == 1 || root < 0 || root >= size)
        return ONE_RANK;
    return TAKEN;
}

enum outcome judge_values(uint64_t bytes)
{
    return bytes > VALUES_BYTES_MAX ? LONG_VALUES : TAKEN;
}

/* The bounds of lengths are those of broadcasts. */
static bool is_within_bounds(const struct communicator *communicator, const struct call *call)
{
    return call->collective != BROADCAST || (call->bytes >= communicator->bytes_min && call->bytes <= communicator->bytes_max);
}

/* Whether values, which are not encrypted on their way to the root, would go by encrypted
 * groups. */
static bool is_to_be_encrypted(const struct communicator *communicator, const struct call *call)
{
    return call->collective != BROADCAST && call->bytes && communicator->is_encrypted;
}

/* Whether a collective is taken on this communicator. All ranks get the same result. */
static enum outcome judge_in(struct communicator *communicator, const struct call *call)
{
    int class = class_of(call->collective, call->bytes);
    enum outcome outcome;

    if (communicator->outcome != TAKEN)
        return communicator->outcome;
    if (!is_within_bounds(communicator, call))
        return OTHER_BYTES;
    if (is_to_be_encrypted(communicator, call))
        return ENCRYPTED;
    outcome = choose(&communicator->choice, call->root, class);
    if (outcome != TAKEN || settings()->choice == CHOICE_ALWAYS)
        return outcome;
    if (!is_tried(&communicator->choice, call->root, class) && !is_worth_groups(communicator, call->root))
        return RARE_ROOT;
    return judge_groups(communicator, call->root, use_of(call->collective));
}

/* Carries out a collective by the groups of its root. With TREECAST_MPI_CHOICE=always, groups that
 * are missing are made here. If that is impossible, the call's outcome is not TAKEN. Returns an MPI
 * error code. */
static int carry_out(struct call *call)
{
    struct communicator *communicator = call->communicator;
    struct root_groups *groups = NULL;
    int error = set_up_communicator(communicator, call->comm);

    /* Now the settings of the other ranks are known. */
    if (error == MPI_SUCCESS && communicator->outcome == TAKEN && !is_within_bounds(communicator, call))
        call->outcome = OTHER_BYTES;
    else if (error == MPI_SUCCESS && communicator->outcome == TAKEN && is_to_be_encrypted(communicator, call))
        call->outcome = ENCRYPTED;
    else if (error == MPI_SUCCESS && communicator->outcome == TAKEN)
        error = find_root(communicator, call->root, use_of(call->collective), &groups);
    if (error == MPI_SUCCESS && groups && communicator->outcome == TAKEN) {
        complete_requests(communicator, groups);
        error = call->carry_out(call, groups);
    }
    if (communicator->outcome != TAKEN)
        call->outcome = communicator->outcome;
    else if (!groups && call->outcome == TAKEN)
        call->outcome = MANY_ROOTS;
    return error;
}

/* Carries out a collective, unless it is to be passed on: then the call's outcome is not TAKEN.
 * Returns an MPI error code. */
static int take(struct call *call)
{
    int error = make_wanted_groups(call->comm);

    if (error != MPI_SUCCESS)
        return error;
    if (call->outcome != TAKEN) {
        count_passed(call->collective, call->outcome);
        return MPI_SUCCESS;
    }
    error = find_communicator(call->comm, &call->communicator);
    if (error != MPI_SUCCESS)
        return error;
    call->outcome = judge_in(call->communicator, call);
    return call->outcome == TAKEN ? carry_out(call) : MPI_SUCCESS;
}

bool begin_call(struct call *call)
{
    call->since_ns = now_ns();
    call->error = take(call);
    if (call->error == MPI_SUCCESS && call->outcome != TAKEN)
        return false;
    call->error = end_call(call, call->error);
    /* An error goes to the communicator's error handler, as those of the MPI itself do. */
    if (call->error != MPI_SUCCESS)
        mpi.Comm_call_errhandler(call->comm, call->error);
    return true;
}

int end_call(struct call *call, int error)
{
    struct communicator *communicator = call->communicator;
    uint64_t ns = (uint64_t)(now_ns() - call->since_ns);
    bool is_given_up = false;
    int note_error = MPI_SUCCESS;
    struct statistics *statistics;

    if (!communicator)
        return error;
    statistics = &communicator->report.statistics[call->collective];
    if (call->outcome == TAKEN) {
        communicator->report.errors += error != MPI_SUCCESS;
        count_taken(statistics, call->bytes, ns);
    } else {
        statistics->outcomes[call->outcome]++;
    }
    if (communicator->outcome == TAKEN)
        note_error = note_call(&communicator->choice, call->comm, call->root, class_of(call->collective, call->bytes), call->bytes,
                               call->outcome == TAKEN ? BY_TREECAST : BY_MPI, (double)ns / 1e3, &is_given_up);
    if (is_given_up) {
        cancel_preparation(communicator);
        close_groups(communicator);
    }
    if (note_error == MPI_SUCCESS)
        note_error = prepare(communicator, call->comm);
    return error != MPI_SUCCESS ? error : note_error;
}
