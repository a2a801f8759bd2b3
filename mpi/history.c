#define _GNU_SOURCE

#include "history.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "node.h"
#include "settings.h"

/* A line of the file: what was measured where, and the times by the MPI and by Treecast. */
#define HEADER "# MPI\tsettings\tranks\tranks per host\tbytes from\tMPI us\tTreecast us\n"

/* The most lines of the file; older ones are dropped. */
enum { LINES_MAX = 1024, LINE_BYTES = 512 };

struct line {
    char text[LINE_BYTES];
    /* The bytes before the times, which are the same in lines about the same. */
    size_t about;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct line *kept;
static int kept_count;

/* The MPI's name and version: the beginning of what it says of itself, without tabs. */
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

/* What a line is about; its number of bytes, of which the parts leave room for the times. */
static size_t write_about(char text[LINE_BYTES], MPI_Comm comm, int class)
{
    char name[64];
    int ranks;

    name_mpi(name, sizeof name);
    mpi.Comm_size(comm, &ranks);
    return (size_t)snprintf(text, LINE_BYTES, "%s\t%.120s%.120s\t%d\t%d\t%llu\t", name, settings()->node, settings()->group,
                            ranks, local_ranks(), 1ull << class);
}

/* Where two lines are about the same. */
static bool is_about(const char *line, const char *about, size_t bytes)
{
    return !strncmp(line, about, bytes);
}

void find_history(MPI_Comm comm, double us[CLASSES][WAYS])
{
    FILE *file = *settings()->history ? fopen(settings()->history, "re") : NULL;
    char line[LINE_BYTES], about[CLASSES][LINE_BYTES];
    size_t bytes[CLASSES];
    int class;

    if (!file)
        return;
    for (class = 0; class < CLASSES; class++)
        bytes[class] = write_about(about[class], comm, class);
    while (fgets(line, sizeof line, file))
        for (class = 0; class < CLASSES; class++)
            if (is_about(line, about[class], bytes[class]) &&
                sscanf(line + bytes[class], "%lf\t%lf", &us[class][BY_MPI], &us[class][BY_TREECAST]) != WAYS)
                us[class][BY_MPI] = us[class][BY_TREECAST] = 0;
    fclose(file);
}

/* The place of a line about this, or of a new one; NULL: there is no room. */
static struct line *find_line(const char *text, size_t about)
{
    int i;

    for (i = 0; i < kept_count; i++)
        if (kept[i].about == about && is_about(kept[i].text, text, about))
            return &kept[i];
    if (!kept)
        kept = calloc(LINES_MAX, sizeof *kept);
    return kept && kept_count < LINES_MAX ? &kept[kept_count++] : NULL;
}

void keep_history(MPI_Comm comm, int class, const double us[WAYS])
{
    char text[LINE_BYTES];
    size_t about = write_about(text, comm, class);
    struct line *line;

    pthread_mutex_lock(&lock);
    line = find_line(text, about);
    if (line) {
        memcpy(line->text, text, about);
        line->about = about;
        snprintf(line->text + about, sizeof line->text - about, "%.6g\t%.6g\n", us[BY_MPI], us[BY_TREECAST]);
    }
    pthread_mutex_unlock(&lock);
}

static bool is_kept(const char *line)
{
    int i;

    for (i = 0; i < kept_count; i++)
        if (is_about(line, kept[i].text, kept[i].about))
            return true;
    return false;
}

/* The lines of the present file that are about something else, up to the most, of which the last are the newest. */
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

/* Makes the folders of a path. */
static void make_folders(const char *path)
{
    char *folder = strdup(path), *slash;

    for (slash = folder ? strchr(folder + 1, '/') : NULL; slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(folder, 0777);
        *slash = '/';
    }
    free(folder);
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

    if (!*path || !kept_count)
        return;
    snprintf(partial, sizeof partial, "%s.%ld.part", path, (long)getpid());
    make_folders(path);
    if (!write_history(partial) || rename(partial, path) != 0) {
        if (settings()->reports)
            fprintf(stderr, "treecast: %s is not written: %s\n", path, strerror(errno));
        unlink(partial);
    }
}
