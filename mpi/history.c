#define _GNU_SOURCE

#include "history.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "node.h"
#include "settings.h"

/* The first line of the file. Each other line has the times of one class of lengths. */
#define HEADER "# MPI\tsettings\tranks\tranks per host\tcollective\tbytes from\tMPI us\tTreecast us\n"

/* The most lines of the file; older ones are dropped. */
enum { LINES_MAX = 1024, LINE_BYTES = 512 };

struct line {
    char text[LINE_BYTES];
    /* The length of the key: the columns before the times. */
    size_t key_bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct line *kept;
static int kept_count;

/* The MPI's name and version: the beginning of its version string, without tabs. */
static void name_mpi(char *name, size_t capacity)
{
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length;
    size_t i;

    mpi.Get_library_version(version, &length);
    version[strcspn(version, ",\n")] = '\0';
    for (i = 0; version[i]; i++)
        if (version[i] == '\t')
            version[i] = ' ';
    snprintf(name, capacity, "%.63s", version);
}

/* A hash of the settings of nodes and groups (FNV-1a), and not their text, which may hold
 * secrets. */
static uint64_t hash_settings(void)
{
    const char *const texts[] = {settings()->node, settings()->group};
    uint64_t hash = 0xcbf29ce484222325u;
    const char *byte;
    size_t i;

    for (i = 0; i < sizeof texts / sizeof *texts; i++)
        for (byte = texts[i]; *byte; byte++)
            hash = (hash ^ (unsigned char)*byte) * 0x100000001b3u;
    return hash;
}

/* Writes the key of a line and returns its length, which leaves room for the times. */
static size_t write_key(char text[LINE_BYTES], MPI_Comm comm, int class)
{
    char name[64];
    int ranks;

    name_mpi(name, sizeof name);
    mpi.Comm_size(comm, &ranks);
    return (size_t)snprintf(text, LINE_BYTES, "%s\t%016llx\t%d\t%d\t%s\t%llu\t", name, (unsigned long long)hash_settings(), ranks,
                            local_ranks(), name_of(collective_of(class)), bytes_from(class));
}

/* Whether a line has this key. */
static bool has_key(const char *line, const char *key, size_t bytes)
{
    return !strncmp(line, key, bytes);
}

/* Reads the times of a line. Of NaN, the maximum of all ranks may differ between the ranks. */
static bool read_times(const char *text, double us[WAYS])
{
    return sscanf(text, "%lf\t%lf", &us[BY_MPI], &us[BY_TREECAST]) == WAYS && isfinite(us[BY_MPI]) && isfinite(us[BY_TREECAST]);
}

void find_history(MPI_Comm comm, double us[CLASSES][WAYS])
{
    FILE *file = *settings()->history ? fopen(settings()->history, "re") : NULL;
    char line[LINE_BYTES], key[CLASSES][LINE_BYTES];
    size_t bytes[CLASSES];
    int class;

    if (!file)
        return;
    for (class = 0; class < CLASSES; class++)
        bytes[class] = write_key(key[class], comm, class);
    while (fgets(line, sizeof line, file))
        for (class = 0; class < CLASSES; class++)
            if (has_key(line, key[class], bytes[class]) && !read_times(line + bytes[class], us[class]))
                us[class][BY_MPI] = us[class][BY_TREECAST] = 0;
    fclose(file);
}

/* Returns the kept line with this key, or a new one; NULL if there is no room. */
static struct line *find_line(const char *text, size_t key_bytes)
{
    int i;

    for (i = 0; i < kept_count; i++)
        if (kept[i].key_bytes == key_bytes && has_key(kept[i].text, text, key_bytes))
            return &kept[i];
    if (!kept)
        kept = calloc(LINES_MAX, sizeof *kept);
    return kept && kept_count < LINES_MAX ? &kept[kept_count++] : NULL;
}

void keep_history(MPI_Comm comm, int class, const double us[WAYS])
{
    char text[LINE_BYTES];
    size_t key_bytes = write_key(text, comm, class);
    struct line *line;

    pthread_mutex_lock(&lock);
    line = find_line(text, key_bytes);
    if (line) {
        memcpy(line->text, text, key_bytes);
        line->key_bytes = key_bytes;
        snprintf(line->text + key_bytes, sizeof line->text - key_bytes, "%.6g\t%.6g\n", us[BY_MPI], us[BY_TREECAST]);
    }
    pthread_mutex_unlock(&lock);
}

static bool is_kept(const char *line)
{
    int i;

    for (i = 0; i < kept_count; i++)
        if (has_key(line, kept[i].text, kept[i].key_bytes))
            return true;
    return false;
}

/* Copies the lines of the present file with other keys. If there are too many, the oldest, which
 * are first, are dropped. */
static void copy_others(FILE *to)
{
    FILE *file = fopen(settings()->history, "re");
    char line[LINE_BYTES];
    int lines = 0;

    while (file && fgets(line, sizeof line, file))
        lines++;
    if (file)
        rewind(file);
    for (; file && fgets(line, sizeof line, file); lines--)
        if (*line != '#' && lines + kept_count <= LINES_MAX && !is_kept(line))
            fputs(line, to);
    if (file)
        fclose(file);
}

/* Creates the directories of a path. */
static void make_directories(const char *path)
{
    char *directory = strdup(path), *slash;

    for (slash = directory ? strchr(directory + 1, '/') : NULL; slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(directory, 0777);
        *slash = '/';
    }
    free(directory);
}

/* A process waits for the lock for a second at most: the one that holds it may be stopped. */
enum { LOCK_TRIES = 100, LOCK_STEP_US = 10000 };

/* Locks the directory of a file, and returns its descriptor, or -1. Several processes of a program
 * replace the file when it ends, those with rank 0 in a communicator, and each copies what is in
 * it: without the lock, two that do so at once would lose lines. So they may where the file system
 * has no locks. */
static int lock_directory(const char *path)
{
    char *directory = strdup(path), *slash = directory ? strrchr(directory, '/') : NULL;
    int descriptor, tries = 0;

    if (slash)
        slash[1] = '\0';
    descriptor = directory ? open(slash ? directory : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    free(directory);
    while (descriptor >= 0 && flock(descriptor, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK && tries++ < LOCK_TRIES)
        usleep(LOCK_STEP_US);
    return descriptor;
}

static bool write_history(const char *path)
{
    FILE *file = fopen(path, "wxe");
    bool is_written;
    int i;

    if (!file)
        return false;
    fputs(HEADER, file);
    copy_others(file);
    for (i = 0; i < kept_count; i++)
        fputs(kept[i].text, file);
    is_written = !ferror(file);
    return fclose(file) == 0 && is_written;
}

void save_history(void)
{
    const char *path = settings()->history;
    char partial[sizeof settings()->history + 32];
    int directory;

    if (!*path || !kept_count)
        return;
    snprintf(partial, sizeof partial, "%s.%ld.part", path, (long)getpid());
    make_directories(path);
    directory = lock_directory(path);
    if (!write_history(partial) || rename(partial, path) != 0) {
        if (settings()->reports)
            fprintf(stderr, "treecast: %s is not written: %s\n", path, strerror(errno));
        unlink(partial);
    }
    if (directory >= 0)
        close(directory);
}
