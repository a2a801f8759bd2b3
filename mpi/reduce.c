/* Short reduces, to all ranks or to one: an all-reduce by the groups of a root, of which all ranks
 * or only the root use the result. */

#include <string.h>

#include "call.h"
#include "intercept.h"
#include "settings.h"
#include "transfer.h"

struct reduce {
    struct call call;
    const void *from;
    void *to;
    size_t count;
    tc_element element;
    tc_operation operation;
};

static bool is_given_result(const struct call *call, int rank)
{
    return call->collective == ALLREDUCE || call->root == rank;
}

static int carry_out(const struct call *call, struct root_groups *groups)
{
    const struct reduce *reduce = (const struct reduce *)call;
    uint64_t values[VALUES_BYTES_MAX / sizeof(uint64_t)];
    int error;

    memcpy(values, reduce->from, call->bytes);
    error = combine_values(call->communicator, groups, values, reduce->count, reduce->element, reduce->operation);
    if (error == MPI_SUCCESS && is_given_result(call, call->communicator->rank))
        memcpy(reduce->to, values, call->bytes);
    return error;
}

static bool is_among(MPI_Datatype type, const MPI_Datatype *types, size_t count)
{
    size_t i = 0;

    while (i < count && types[i] != type)
        i++;
    return i < count;
}

#define IS_AMONG(type, types) is_among(type, types, sizeof(types) / sizeof *(types))

/* The values of a type with elements of this length; false: none that can be combined. */
static bool find_element(MPI_Datatype type, uint64_t bytes, tc_element *element)
{
    const MPI_Datatype integers[] = {MPI_INT,   MPI_LONG,   MPI_LONG_LONG, MPI_INT32_T,  MPI_INT64_T, MPI_AINT,
                                     MPI_COUNT, MPI_OFFSET, MPI_INTEGER,   MPI_INTEGER4, MPI_INTEGER8};
    const MPI_Datatype naturals[] = {MPI_UNSIGNED, MPI_UNSIGNED_LONG, MPI_UNSIGNED_LONG_LONG, MPI_UINT32_T, MPI_UINT64_T};
    const MPI_Datatype fractions[] = {MPI_FLOAT, MPI_DOUBLE, MPI_REAL, MPI_REAL4, MPI_REAL8, MPI_DOUBLE_PRECISION};
    bool is_long = bytes == 8;

    if (bytes != 4 && bytes != 8)
        return false;
    if (IS_AMONG(type, integers))
        *element = is_long ? TC_I64 : TC_I32;
    else if (IS_AMONG(type, naturals))
        *element = is_long ? TC_U64 : TC_U32;
    else if (IS_AMONG(type, fractions))
        *element = is_long ? TC_F64 : TC_F32;
    else
        return false;
    return true;
}

static bool find_operation(MPI_Op op, tc_operation *operation)
{
    const MPI_Op ops[] = {[TC_SUM] = MPI_SUM,  [TC_PRODUCT] = MPI_PROD, [TC_MIN] = MPI_MIN, [TC_MAX] = MPI_MAX,
                          [TC_AND] = MPI_BAND, [TC_OR] = MPI_BOR,       [TC_XOR] = MPI_BXOR};
    size_t i = 0;

    while (i < sizeof ops / sizeof *ops && ops[i] != op)
        i++;
    *operation = (tc_operation)i;
    return i < sizeof ops / sizeof *ops;
}

static bool is_fraction(tc_element element)
{
    return element == TC_F32 || element == TC_F64;
}

/* Whether both ways give the same result. Open MPI 4.1 compares MPI_UNSIGNED_LONG as if it were
 * signed, and MPICH 4.0 all unsigned types. Bitwise operations on fractions are an error, which
 * the MPI reports. */
static bool is_alike(tc_element element, tc_operation operation)
{
    switch (operation) {
    case TC_MIN:
    case TC_MAX:
        return element != TC_U32 && element != TC_U64;
    case TC_AND:
    case TC_OR:
    case TC_XOR:
        return !is_fraction(element);
    default:
        return true;
    }
}

/* Whether it may be taken, as far as that depends on the values; sets what they are. Sums and
 * products of fractions depend on the order, and the least and greatest on what NaN counts as. Both
 * differ between the two ways: a program would get different results from one call to the next. */
static enum outcome judge_kind(struct reduce *reduce, MPI_Datatype type, MPI_Op op)
{
    if (!find_element(type, reduce->call.bytes / reduce->count, &reduce->element) || !find_operation(op, &reduce->operation) ||
        !is_alike(reduce->element, reduce->operation))
        return OTHER_VALUES;
    /* In a reduce to one rank, MPI_IN_PLACE is valid there only; the MPI reports the error. */
    if (reduce->from == MPI_IN_PLACE)
        return OTHER_VALUES;
    return is_fraction(reduce->element) && settings()->choice != CHOICE_ALWAYS ? ROUNDED : judge_values(reduce->call.bytes);
}

/* As begin_call(). */
static bool begin(struct reduce *reduce, enum collective collective, const void *from, void *to, MPI_Count count, handle type, handle op,
                  int root, handle comm)
{
    struct call *call = &reduce->call;
    int rank;

    *reduce = (struct reduce){.call = {.collective = collective, .comm = (MPI_Comm)comm, .root = root, .carry_out = carry_out},
                              .from = from,
                              .to = to,
                              .count = (size_t)count};
    if (!mpi_find())
        return false;
    call->bytes = bytes_of(count, (MPI_Datatype)type);
    call->outcome = judge(call->comm, root, call->bytes);
    if (call->outcome == TAKEN) {
        mpi.Comm_rank(call->comm, &rank);
        if (from == MPI_IN_PLACE && is_given_result(call, rank))
            reduce->from = to;
        call->outcome = judge_kind(reduce, (MPI_Datatype)type, (MPI_Op)op);
    }
    return begin_call(call);
}

typedef int reduce_function(const void *from, void *to, int count, handle type, handle op, int root, handle comm);
typedef int reduce_c_function(const void *from, void *to, MPI_Count count, handle type, handle op, int root, handle comm);

reduce_function intercept_reduce INTERCEPT(MPI_Reduce);
reduce_c_function intercept_reduce_c INTERCEPT(MPI_Reduce_c);

int intercept_reduce(const void *from, void *to, int count, handle type, handle op, int root, handle comm)
{
    struct reduce reduce;

    if (begin(&reduce, REDUCE, from, to, count, type, op, root, comm))
        return reduce.call.error;
    return end_call(&reduce.call, PASS_TO(reduce_function, "PMPI_Reduce")(from, to, count, type, op, root, comm));
}

int intercept_reduce_c(const void *from, void *to, MPI_Count count, handle type, handle op, int root, handle comm)
{
    struct reduce reduce;

    if (begin(&reduce, REDUCE, from, to, count, type, op, root, comm))
        return reduce.call.error;
    return end_call(&reduce.call, PASS_LARGE(reduce_c_function, reduce_function, "Reduce", (from, to, count, type, op, root, comm),
                                             (from, to, small_count(count), type, op, root, comm)));
}

typedef int allreduce_function(const void *from, void *to, int count, handle type, handle op, handle comm);
typedef int allreduce_c_function(const void *from, void *to, MPI_Count count, handle type, handle op, handle comm);

allreduce_function intercept_allreduce INTERCEPT(MPI_Allreduce);
allreduce_c_function intercept_allreduce_c INTERCEPT(MPI_Allreduce_c);

int intercept_allreduce(const void *from, void *to, int count, handle type, handle op, handle comm)
{
    struct reduce reduce;

    if (begin(&reduce, ALLREDUCE, from, to, count, type, op, 0, comm))
        return reduce.call.error;
    return end_call(&reduce.call, PASS_TO(allreduce_function, "PMPI_Allreduce")(from, to, count, type, op, comm));
}

int intercept_allreduce_c(const void *from, void *to, MPI_Count count, handle type, handle op, handle comm)
{
    struct reduce reduce;

    if (begin(&reduce, ALLREDUCE, from, to, count, type, op, 0, comm))
        return reduce.call.error;
    return end_call(&reduce.call, PASS_LARGE(allreduce_c_function, allreduce_function, "Allreduce", (from, to, count, type, op, comm),
                                             (from, to, small_count(count), type, op, comm)));
}

#ifdef OPEN_MPI
typedef void reduce_of_fortran_function(const void *from, void *to, const MPI_Fint *count, const MPI_Fint *type, const MPI_Fint *op,
                                        const MPI_Fint *root, const MPI_Fint *comm, MPI_Fint *error);

static __attribute__((used)) void reduce_from_fortran(const void *from, void *to, const MPI_Fint *count, const MPI_Fint *type,
                                                      const MPI_Fint *op, const MPI_Fint *root, const MPI_Fint *comm, MPI_Fint *error)
{
    int result;

    if (!mpi_find()) {
        PASS_TO(reduce_of_fortran_function, "pmpi_reduce_")(from, to, count, type, op, root, comm, error);
        return;
    }
    result = intercept_reduce(as_in_c(from), as_in_c(to), (int)*count, TYPE_IN_C(*type), OP_IN_C(*op), (int)*root, COMM_IN_C(*comm));
    if (error)
        *error = result;
}

FORTRAN_NAMES(reduce_from_fortran, reduce, REDUCE)

typedef void allreduce_of_fortran_function(const void *from, void *to, const MPI_Fint *count, const MPI_Fint *type, const MPI_Fint *op,
                                           const MPI_Fint *comm, MPI_Fint *error);

static __attribute__((used)) void allreduce_from_fortran(const void *from, void *to, const MPI_Fint *count, const MPI_Fint *type,
                                                         const MPI_Fint *op, const MPI_Fint *comm, MPI_Fint *error)
{
    int result;

    if (!mpi_find()) {
        PASS_TO(allreduce_of_fortran_function, "pmpi_allreduce_")(from, to, count, type, op, comm, error);
        return;
    }
    result = intercept_allreduce(as_in_c(from), as_in_c(to), (int)*count, TYPE_IN_C(*type), OP_IN_C(*op), COMM_IN_C(*comm));
    if (error)
        *error = result;
}

FORTRAN_NAMES(allreduce_from_fortran, allreduce, ALLREDUCE)
#endif
