#define _GNU_SOURCE

#include "library.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct mpi_library mpi;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool is_ours;
/* The loaded library, where it is not among those whose symbols are global: Python loads its
 * modules and what they need aside. */
static void *library;

/* What only libraries of a binary interface have: a symbol, and a file name. Those of MPICH's
 * interface have neither. */
#define OPEN_MPI_SYMBOL "ompi_mpi_comm_world"
#define STANDARD_NAME "libmpi_abi"

/* The file of ld.so(8) with libraries for all programs, and what the names of shims begin with. */
#define FOR_ALL_PROGRAMS "/etc/ld.so.preload"
#define SHIM_NAME "libtreecast_mpi_"

/* The names of loaded objects that may be an MPI library. They are opened after the walk, which
 * holds a lock of the loader. */
struct names {
    char name[8][4096];
    int count;
};

static int keep_name(struct dl_phdr_info *object, size_t size, void *argument)
{
    struct names *names = argument;

    (void)size;
    if (object->dlpi_name && strstr(object->dlpi_name, "libmpi") && names->count < 8)
        snprintf(names->name[names->count++], sizeof names->name[0], "%s", object->dlpi_name);
    return 0;
}

/* The loaded MPI library that has a symbol. */
static void *find_library(const char *name)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct names names;
    void *found = NULL;
    int i;

    pthread_mutex_lock(&lock);
    names.count = 0;
    dl_iterate_phdr(keep_name, &names);
    for (i = 0; i < names.count && !found; i++) {
        void *handle = dlopen(names.name[i], RTLD_LAZY | RTLD_NOLOAD);

        if (handle && dlsym(handle, name))
            found = handle;
        else if (handle)
            dlclose(handle);
    }
    pthread_mutex_unlock(&lock);
    return found;
}

void *mpi_symbol(const char *name)
{
    void *symbol = dlsym(RTLD_DEFAULT, name);

    if (!symbol && !library)
        library = find_library("PMPI_Bcast");
    if (!symbol && library)
        symbol = dlsym(library, name);
    return symbol;
}

static void *required(void *symbol, const char *name)
{
    if (!symbol) {
        fprintf(stderr, "treecast: this process calls a function of MPI, and no MPI library with %s is loaded\n", name);
        abort();
    }
    return symbol;
}

void *mpi_required(const char *name)
{
    return required(mpi_symbol(name), name);
}

void *mpi_next(const char *name)
{
    void *symbol = dlsym(RTLD_NEXT, name), *aside;

    if (!symbol) {
        aside = find_library(name);
        symbol = aside ? dlsym(aside, name) : NULL;
    }
    return required(symbol, name);
}

static bool has_this_interface(void)
{
    bool is_open_mpi = mpi_symbol(OPEN_MPI_SYMBOL), is_standard;
    Dl_info file;

    is_standard = dladdr(mpi_symbol("PMPI_Bcast"), &file) && file.dli_fname && strstr(file.dli_fname, STANDARD_NAME);
#if defined(OPEN_MPI)
    return is_open_mpi && !is_standard;
#elif defined(MPI_ABI_VERSION)
    return !is_open_mpi && is_standard;
#else
    return !is_open_mpi && !is_standard;
#endif
}

/* Whether the shim is preloaded by the file that does so for all programs of this host. If
 * LD_PRELOAD has it too, that counts, since the other hosts may lack such a file. */
static bool is_preloaded_everywhere(void)
{
    const char *preloaded = getenv("LD_PRELOAD");
    bool is_named = false;
    char line[4096];
    FILE *file;

    if (preloaded && strstr(preloaded, SHIM_NAME))
        return false;
    file = fopen(FOR_ALL_PROGRAMS, "re");
    while (file && !is_named && fgets(line, sizeof line, file)) {
        line[strcspn(line, "#")] = '\0';
        is_named = strstr(line, SHIM_NAME);
    }
    if (file)
        fclose(file);
    return is_named;
}

static void find(void)
{
    mpi_required("PMPI_Bcast");
    if (is_preloaded_everywhere()) {
        fputs("treecast: the shim does nothing, because it is in " FOR_ALL_PROGRAMS ", which is for all programs of this host; "
              "start MPI programs by treecast mpi, or with LD_PRELOAD\n", stderr);
        return;
    }
    is_ours = has_this_interface();
    if (!is_ours) {
        fputs("treecast: the shim is for another MPI than that of this program, and does nothing; "
              "treecast mpi --show -- COMMAND says which one is right\n", stderr);
        return;
    }
#define FIND(name) mpi.name = (__typeof__(MPI_##name) *)mpi_required("PMPI_" #name);
    MPI_FUNCTIONS(FIND)
#undef FIND
#define FIND(name) mpi.name = (__typeof__(MPI_##name) *)mpi_symbol("PMPI_" #name);
    MPI_FUNCTIONS_OF_4(FIND)
#undef FIND
#define FIND(name) mpi.name = mpi_required(#name);
    MPI_VARIABLES(FIND)
#undef FIND
}

bool mpi_find(void)
{
    pthread_once(&once, find);
    return is_ours;
}
