#define _GNU_SOURCE

#include "node.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "settings.h"
#include "treecast_library.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* Whether a thread opens the node, without the lock. */
static bool is_opening;
static pthread_cond_t is_opened = PTHREAD_COND_INITIALIZER;
static tc_node *node;
/* What was chosen for the node that is open or is being opened. */
static char node_share[SECRET_BYTES];
static struct candidate node_candidate;

static void draw_secret(char secret[SECRET_BYTES])
{
    unsigned char random[(SECRET_BYTES - 1) / 2];
    size_t i;

    /* Blocks until the kernel has entropy, and fails for no other reason. */
    while (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        continue;
    for (i = 0; i < sizeof random; i++)
        snprintf(secret + 2 * i, 3, "%02x", random[i]);
}

static void name_host(char *name, size_t capacity)
{
    char boot[40] = "";
    struct stat network = {0};
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");

    if (file) {
        if (fscanf(file, "%36s", boot) != 1)
            boot[0] = '\0';
        fclose(file);
    }
    stat("/proc/self/ns/net", &network);
    snprintf(name, capacity, "%s %llu %u", boot, (unsigned long long)network.st_ino, (unsigned)getuid());
}

static uint8_t count_bits(const uint8_t *mask, size_t bytes)
{
    uint8_t bits = 0;
    size_t i;

    for (i = 0; i < bytes; i++)
        bits += (uint8_t)__builtin_popcount(mask[i]);
    return bits;
}

static bool is_in(const struct candidate *candidate, const struct candidate *network)
{
    unsigned bits = network->prefix_bits, bytes = bits / 8, rest = bits % 8;

    if (candidate->version != network->version || memcmp(candidate->bytes, network->bytes, bytes) != 0)
        return false;
    return !rest || (candidate->bytes[bytes] ^ network->bytes[bytes]) >> (8 - rest) == 0;
}

/* Whether an interface is the one of the settings: that of its name, or one in the network. */
static bool is_wanted(const char *name, const struct candidate *candidate)
{
    const char *wanted = settings()->interface, *slash = wanted ? strchr(wanted, '/') : NULL;
    struct candidate network = {0};
    unsigned bits;
    char text[INET6_ADDRSTRLEN];

    if (!slash)
        return !wanted || !strcmp(name, wanted);
    snprintf(text, sizeof text, "%.*s", (int)(slash - wanted), wanted);
    network.version = strchr(text, ':') ? 6 : 4;
    if (inet_pton(network.version == 6 ? AF_INET6 : AF_INET, text, network.bytes) != 1 ||
        sscanf(slash, "/%u", &bits) != 1 || bits > (network.version == 6 ? 128 : 32))
        return false;
    network.prefix_bits = (uint8_t)bits;
    return is_in(candidate, &network);
}

static bool read_candidate(const struct ifaddrs *interface, struct candidate *candidate)
{
    const struct sockaddr *address = interface->ifa_addr, *mask = interface->ifa_netmask;
    unsigned needed = IFF_UP | IFF_RUNNING;

    memset(candidate, 0, sizeof *candidate);
    if (!address || !mask || (interface->ifa_flags & needed) != needed || interface->ifa_flags & IFF_LOOPBACK)
        return false;
    if (address->sa_family == AF_INET) {
        candidate->version = 4;
        memcpy(candidate->bytes, &((const struct sockaddr_in *)address)->sin_addr, 4);
        candidate->prefix_bits = count_bits((const uint8_t *)&((const struct sockaddr_in *)mask)->sin_addr, 4);
    } else if (address->sa_family == AF_INET6) {
        const struct in6_addr *ip = &((const struct sockaddr_in6 *)address)->sin6_addr;

        if (IN6_IS_ADDR_LINKLOCAL(ip))
            return false;
        candidate->version = 6;
        memcpy(candidate->bytes, ip, 16);
        candidate->prefix_bits = count_bits((const uint8_t *)&((const struct sockaddr_in6 *)mask)->sin6_addr, 16);
    } else {
        return false;
    }
    return is_wanted(interface->ifa_name, candidate);
}

static void find_candidates(struct candidate candidates[CANDIDATES_MAX])
{
    struct ifaddrs *interfaces, *interface;
    int found = 0;

    if (getifaddrs(&interfaces) != 0)
        return;
    for (interface = interfaces; interface && found < CANDIDATES_MAX; interface = interface->ifa_next)
        found += read_candidate(interface, &candidates[found]);
    freeifaddrs(interfaces);
    if (found < CANDIDATES_MAX)
        memset(&candidates[found], 0, sizeof *candidates);
}

void introduce(struct introduction *introduction)
{
    memset(introduction, 0, sizeof *introduction);
    name_host(introduction->host, sizeof introduction->host);
    draw_secret(introduction->secret);
    introduction->bytes_min = settings()->bytes_min;
    introduction->bytes_max = settings()->bytes_max;
    introduction->roots = (uint32_t)settings()->roots;
    introduction->is_encrypted = strstr(settings()->group, "encrypt=on") != NULL;
    pthread_mutex_lock(&lock);
    if (node || is_opening) {
        memcpy(introduction->share, node_share, sizeof node_share);
        introduction->candidates[0] = node_candidate;
    } else {
        find_candidates(introduction->candidates);
    }
    pthread_mutex_unlock(&lock);
}

/* The address of a rank in a network; NULL: it has none. */
static const struct candidate *find_in(const struct introduction *rank, const struct candidate *network)
{
    int i;

    for (i = 0; i < CANDIDATES_MAX && rank->candidates[i].version; i++)
        if (is_in(&rank->candidates[i], network))
            return &rank->candidates[i];
    return NULL;
}

/* Whether all ranks are in a network, and hosts have addresses of their own there: bridges of
 * containers have the same on each host. */
static bool joins_all(const struct candidate *network, const struct introduction *all, int size)
{
    const struct candidate *first = find_in(&all[0], network);
    int rank;

    for (rank = 1; rank < size; rank++) {
        const struct candidate *own = find_in(&all[rank], network);

        if (!own || (!memcmp(own, first, sizeof *own) && strcmp(all[rank].host, all[0].host) != 0))
            return false;
    }
    return true;
}

/* The address at which a rank's node listens: in the first network of rank 0 that joins all, or
 * else its own first one. */
static const struct candidate *choose(const struct introduction *all, int size, int rank)
{
    int i;

    for (i = 0; i < CANDIDATES_MAX && all[0].candidates[i].version; i++)
        if (joins_all(&all[0].candidates[i], all, size))
            return find_in(&all[rank], &all[0].candidates[i]);
    return &all[rank].candidates[0];
}

int local_ranks(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "PALS_LOCAL_SIZE"};
    size_t i;

    for (i = 0; i < sizeof names / sizeof *names; i++) {
        const char *ranks = getenv(names[i]);

        if (ranks)
            return atoi(ranks);
    }
    return 0;
}

/* The name under which the ranks of a host share a node: that of the first node that is open
 * there, or the first rank's secret; NULL: it is not shared. */
static const char *choose_share(const struct introduction *all, int size, int rank)
{
    const char *secret = NULL;
    int other;

    /* A node that is shared needs a thread for those that share it. */
    if (local_ranks() == 1)
        return NULL;
    for (other = 0; other < size; other++) {
        if (strcmp(all[other].host, all[rank].host) != 0)
            continue;
        if (*all[other].share)
            return all[other].share;
        if (!secret)
            secret = all[other].secret;
    }
    return secret;
}

/* Opens a node, while other threads may introduce this process. The lock is held, but not
 * meanwhile. */
static tc_result open_at(const struct candidate *candidate, const char *share)
{
    char ip[INET6_ADDRSTRLEN], bind[ADDRESS_BYTES], text[sizeof settings()->node + 64];
    tc_node *opened = NULL;
    tc_result result;

    inet_ntop(candidate->version == 6 ? AF_INET6 : AF_INET, candidate->bytes, ip, sizeof ip);
    snprintf(bind, sizeof bind, candidate->version == 6 ? "[%s]:0" : "%s:0", ip);
    snprintf(text, sizeof text, share ? "%sshare=%s" : "%s", settings()->node, share);
    snprintf(node_share, sizeof node_share, "%s", share ? share : "");
    node_candidate = *candidate;
    is_opening = true;
    pthread_mutex_unlock(&lock);
    result = load_treecast() ? treecast.node_new(bind, text, &opened) : TC_SYSTEM_ERROR;
    pthread_mutex_lock(&lock);
    is_opening = false;
    node = result == TC_OK ? opened : NULL;
    pthread_cond_broadcast(&is_opened);
    return result;
}

/* Without an address no other node could send to this one. */
static void say_no_address(char why[WHY_BYTES])
{
    if (settings()->interface)
        snprintf(why, WHY_BYTES, "TREECAST_MPI_INTERFACE=%s: this host has no such interface or network with an address", settings()->interface);
    else
        snprintf(why, WHY_BYTES, "this host has no network interface with an address");
}

bool open_node(const struct introduction *all, int size, int rank, struct endpoint *endpoint, char why[WHY_BYTES])
{
    const struct candidate *candidate = choose(all, size, rank);
    tc_result result = TC_OK;

    if (!candidate->version) {
        say_no_address(why);
        return false;
    }
    pthread_mutex_lock(&lock);
    while (is_opening)
        pthread_cond_wait(&is_opened, &lock);
    if (!node)
        result = open_at(candidate, choose_share(all, size, rank));
    if (result == TC_OK)
        result = treecast.node_address(node, endpoint->address, ADDRESS_BYTES);
    pthread_mutex_unlock(&lock);
    if (result != TC_OK)
        snprintf(why, WHY_BYTES, "%s", treecast.error_message());
    return result == TC_OK;
}

const tc_node *opened_node(void)
{
    return node;
}

void close_node(void)
{
    pthread_mutex_lock(&lock);
    if (node)
        treecast.node_free(node);
    node = NULL;
    pthread_mutex_unlock(&lock);
}
