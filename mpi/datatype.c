#include "datatype.h"

/* How a type was made, and the numbers of arguments of its constructor. */
struct envelope {
    int combiner;
    MPI_Count integers, addresses, counts, types;
};

/* The most arguments of the constructors that are looked into. */
enum { INTEGERS_MAX = 1, ADDRESSES_MAX = 2, COUNTS_MAX = 2 };

/* MPI_Type_get_envelope refuses types made by constructors for large counts, and with it the
 * program ends. An MPI before version 4.0 has neither these constructors nor the function that
 * accepts them. */
static bool get_envelope(MPI_Datatype type, struct envelope *envelope)
{
    int integers, addresses, types;

#if MPI_VERSION >= 4
    if (mpi.Type_get_envelope_c)
        return mpi.Type_get_envelope_c(type, &envelope->integers, &envelope->addresses, &envelope->counts,
                                       &envelope->types, &envelope->combiner) == MPI_SUCCESS;
#endif
    if (mpi.Type_get_envelope(type, &integers, &addresses, &types, &envelope->combiner) != MPI_SUCCESS)
        return false;
    envelope->integers = integers;
    envelope->addresses = addresses;
    envelope->counts = 0;
    envelope->types = types;
    return true;
}

/* The type that a type with one inner type was made of. Other types are refused. */
static bool get_inner(MPI_Datatype type, const struct envelope *envelope, MPI_Datatype *inner)
{
    int integers[INTEGERS_MAX];
    MPI_Aint addresses[ADDRESSES_MAX];

    if (envelope->integers > INTEGERS_MAX || envelope->addresses > ADDRESSES_MAX || envelope->counts > COUNTS_MAX ||
        envelope->types != 1)
        return false;
#if MPI_VERSION >= 4
    if (mpi.Type_get_contents_c) {
        MPI_Count counts[COUNTS_MAX];

        return mpi.Type_get_contents_c(type, envelope->integers, envelope->addresses, envelope->counts, 1, integers,
                                       addresses, counts, inner) == MPI_SUCCESS;
    }
#endif
    return mpi.Type_get_contents(type, (int)envelope->integers, (int)envelope->addresses, 1, integers, addresses,
                                 inner) == MPI_SUCCESS;
}

/* Types that no program frees: named ones, and those of Fortran's kinds (MPI 4.1, section
 * 5.1.13). */
static bool is_predefined(int combiner)
{
    return combiner == MPI_COMBINER_NAMED || combiner == MPI_COMBINER_F90_REAL ||
           combiner == MPI_COMBINER_F90_COMPLEX || combiner == MPI_COMBINER_F90_INTEGER;
}

bool is_dense(MPI_Datatype type)
{
    MPI_Count lower, extent, true_lower, true_extent, size;
    struct envelope envelope;
    MPI_Datatype inner;
    bool is_inner_dense;

    if (mpi.Type_size_x(type, &size) != MPI_SUCCESS ||
        mpi.Type_get_extent_x(type, &lower, &extent) != MPI_SUCCESS ||
        mpi.Type_get_true_extent_x(type, &true_lower, &true_extent) != MPI_SUCCESS)
        return false;
    if (size != extent || size != true_extent || lower || true_lower)
        return false;
    if (!get_envelope(type, &envelope))
        return false;
    if (envelope.combiner == MPI_COMBINER_NAMED)
        return true;
    if (envelope.combiner != MPI_COMBINER_DUP && envelope.combiner != MPI_COMBINER_CONTIGUOUS &&
        envelope.combiner != MPI_COMBINER_RESIZED)
        return false;
    if (!get_inner(type, &envelope, &inner))
        return false;
    is_inner_dense = is_dense(inner);
    if (get_envelope(inner, &envelope) && !is_predefined(envelope.combiner))
        mpi.Type_free(&inner);
    return is_inner_dense;
}
