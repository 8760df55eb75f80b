/* Opens urxe's sysfs files by each kind of call that takes a path, and reports the calls that failed. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CLASS "/sys/class/infiniband"
#define DEVICE CLASS "/urxe_lo"
#define STATE DEVICE "/ports/1/state"

static int failures;
static int visited;

static void check(int right, const char *what)
{
    if (!right) {
        printf("%s: %s\n", what, strerror(errno));
        failures++;
    }
}

static int is_state(int fd)
{
    char text[32] = "";
    int right = fd >= 0 && read(fd, text, sizeof text - 1) > 0 && !strcmp(text, "4: ACTIVE\n");
    if (fd >= 0)
        close(fd);
    return right;
}

static int visit(const char *path, const struct stat *to, int kind, struct FTW *at)
{
    (void)to;
    (void)kind;
    if (!strcmp(path, STATE) && !strcmp(path + at->base, "state"))
        visited++;
    return strncmp(path, DEVICE, strlen(DEVICE)) != 0;
}

static int visit_plainly(const char *path, const struct stat *to, int kind)
{
    (void)to;
    (void)kind;
    visited += !strcmp(path, STATE);
    return 0;
}

int main(void)
{
    char text[PATH_MAX], *found;
    struct stat st;
    struct statx stx;
    struct dirent **names;
    glob_t matches;
    FILE *file;

    check(is_state(open(STATE, O_RDONLY)), "open");
    check(is_state(open("//sys/./class//infiniband/urxe_lo/ports/1/state", O_RDONLY)), "slashes");
    check(is_state(openat(AT_FDCWD, STATE, O_RDONLY)), "openat");
    int class = open("/sys/class", O_RDONLY | O_DIRECTORY);
    check(is_state(openat(class, "infiniband/urxe_lo/ports/1/state", O_RDONLY)), "from a directory");
    file = fopen(STATE, "r");
    check(file && fgets(text, sizeof text, file) && !strcmp(text, "4: ACTIVE\n"), "fopen");
    file = freopen(DEVICE "/node_type", "r", file);
    check(file && fgets(text, sizeof text, file) && !strcmp(text, "1: CA\n"), "freopen");
    check(!stat(DEVICE, &st) && S_ISDIR(st.st_mode), "stat");
    check(!lstat(DEVICE "/device/net/lo", &st) && S_ISLNK(st.st_mode), "lstat");
    check(!fstatat(class, "infiniband/urxe_lo", &st, 0) && S_ISDIR(st.st_mode), "fstatat");
    check(!statx(AT_FDCWD, STATE, 0, STATX_TYPE, &stx) && S_ISREG(stx.stx_mode), "statx");
    check(!stat("/dev/infiniband/urxe_lo", &st) && S_ISCHR(st.st_mode), "stat of a node");
    check(!access(STATE, R_OK), "access");
    check(!faccessat(class, "infiniband", R_OK, 0), "faccessat");
    check(!euidaccess(STATE, R_OK), "euidaccess");
    check(readlink(DEVICE "/device/net/lo", text, sizeof text) > 0, "readlink");
    check(!access(DEVICE "/device/net/lo/mtu", R_OK), "the interface by its link");
    check(!access(DEVICE "/../../net/lo/mtu", R_OK), "the interface by way of the class");

    found = realpath("/sys/class/infiniband_verbs/urxe_lo/device/..", NULL);
    check(found && !strcmp(found, DEVICE), "realpath");
    found = canonicalize_file_name(DEVICE "/ports/../ports");
    check(found && !strcmp(found, DEVICE "/ports"), "canonicalize_file_name");
    found = realpath(DEVICE "/device/net/lo", NULL);
    check(found && !strncmp(found, "/sys/devices/", 13), "realpath of the kernel's");

    int count = scandir(CLASS, &names, NULL, alphasort), there = 0;
    for (int i = 0; i < count; i++)
        there += !strcmp(names[i]->d_name, "urxe_lo");
    check(there == 1, "scandir");
    check(!nftw(DEVICE, visit, 8, FTW_PHYS) && visited == 1, "nftw");
    visited = 0;
    check(!ftw(DEVICE "/ports", visit_plainly, 8) && visited == 1, "ftw");
    check(!glob(CLASS "/urxe_l*/ports/*/sta[st]e", 0, NULL, &matches) && matches.gl_pathc == 1
          && !strcmp(matches.gl_pathv[0], STATE), "glob");

    check(!chdir(DEVICE) && is_state(open("ports/1/state", O_RDONLY)), "chdir");
    check(getcwd(text, sizeof text) && !strcmp(text, DEVICE), "getcwd");
    check(!chdir("..") && getcwd(text, sizeof text) && !strcmp(text, CLASS), "chdir to ..");
    check(!chdir("/sys/class") && is_state(open("infiniband/urxe_lo/ports/1/state", O_RDONLY)),
          "from the class");

    /* Missing files give the usual errors, and other paths are unchanged. */
    check(open(DEVICE "/none", O_RDONLY) == -1 && errno == ENOENT, "a file that is not there");
    check(open("/sys/class/infiniband_none", O_RDONLY) == -1 && errno == ENOENT, "another class");
    check(!stat("/sys/class/net/lo/mtu", &st) && S_ISREG(st.st_mode), "another class's file");
    char own[] = "/tmp/urxe-preload-XXXXXX";
    check(mkdtemp(own) != NULL && !chdir(own), "a directory of one's own");
    int fd = open("infiniband", O_CREAT | O_WRONLY, 0640);
    check(fd >= 0 && !fstat(fd, &st) && (st.st_mode & 0777) == 0640, "the mode of a new file");
    check(!unlink("infiniband") && !rmdir(own), "a file of the same name");
    errno = EDOM;
    check(!access("/", F_OK) && errno == EDOM, "errno");
    if (!failures)
        puts("all paths are visible");
    return failures != 0;
}
