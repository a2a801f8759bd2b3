#define _GNU_SOURCE

#include "treecast_library.h"

#include <dlfcn.h>
#include <stdio.h>

/* The file that has the interface of the header that the shim was compiled with. It is searched
 * for in the shim's own directory first, the run path of the shim. */
#ifndef TREECAST_LIBRARY
#error "TREECAST_LIBRARY is to be the name of the library's file"
#endif

static char why_not[512];

static const char *why_not_loaded(void)
{
    return why_not;
}

struct treecast_library treecast = {.error_message = why_not_loaded};

/* Finds a function; NULL: the library lacks it. */
static void *find(void *library, const char *name, bool *has_all)
{
    void *function = dlsym(library, name);

    if (!function)
        *has_all = false;
    return function;
}

bool load_treecast(void)
{
    struct treecast_library loaded;
    bool has_all = true;
    void *library;

    if (treecast.node_new)
        return true;
    /* Never unloaded: its threads may outlast the last call. */
    library = dlopen(TREECAST_LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
#define FIND(name) loaded.name = library ? (__typeof__(tc_##name) *)find(library, "tc_" #name, &has_all) : NULL;
    TREECAST_FUNCTIONS(FIND)
#undef FIND
    if (library && has_all) {
        treecast = loaded;
        return true;
    }
    snprintf(why_not, sizeof why_not, "the library of Treecast cannot be loaded: %s",
             library ? TREECAST_LIBRARY " is of another version than the shim" : dlerror());
    return false;
}
