// The trainer as a function: train_gpt2.cu with another name for its main, called in a process that
// fork makes. No program is started, nothing is linked and no limit of the machine is measured; all
// else is what a user's run does.
#pragma once
#include "test/fixture.h"
#include "test/invariants/exchange.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "llmc/speed.h"

static bool trainer_speed(DType dtype, size_t memory, DeviceSpeed *speed, Error *err) {
    (void)dtype, (void)memory, (void)err;
    *speed = (DeviceSpeed){0}; // not known
    return true;
}

#define main          trainer_main
#define speed_measure trainer_speed
int trainer_main(int argc, char **argv);
#include "train_gpt2.cu"
#undef main
#undef speed_measure

// OpenMP reads how its threads wait before main: by spinning, which takes the processors from the
// other processes here.
__attribute__((constructor)) static void trainer_wait_passively(int argc, char **argv) {
    (void)argc;
    if (getenv("OMP_WAIT_POLICY")) return;
    setenv("OMP_WAIT_POLICY", "passive", 1);
    execv("/proc/self/exe", argv);
}

enum { TRAINER_WORDS = 96, TRAINER_SECONDS = 600 };

// Words with blanks between them, in place.
static int trainer_split(char *text, char *words[TRAINER_WORDS]) {
    int count = 0;
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " ")) {
        if (count + 1 == TRAINER_WORDS) fail_msg("more than %d words", TRAINER_WORDS);
        words[count++] = word;
    }
    words[count] = NULL;
    return count;
}

static void trainer_set(const char *name, int value) {
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

// A socket that listens at a port of its own choice: no other program can take it.
static int trainer_listen(int *port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, size) != 0 ||
        listen(fd, EXCHANGE_PROCESSES) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &size) != 0)
        perror("a port"), abort();
    *port = ntohs(address.sin_port);
    return fd;
}

// In the process that fork made.
static int trainer_child(const char *directory, const char *arguments, const char *environment) {
    // they would go on with its tests
    static const int cmockas[] = {SIGFPE, SIGILL, SIGSEGV, SIGBUS, SIGSYS, SIGABRT};
    // until the process ends
    static char *words[TRAINER_WORDS], *variables[TRAINER_WORDS], *command, *given;

    for (size_t i = 0; i < sizeof cmockas / sizeof *cmockas; i++) signal(cmockas[i], SIG_DFL);
    alarm(TRAINER_SECONDS); // one that waits for a process that is dead

    if (chdir(directory) != 0 || !freopen("stdout", "a", stdout) || !freopen("stderr", "a", stderr))
        return 99;
    if (!(given = strdup(environment)) || asprintf(&command, "train_gpt2 %s", arguments) < 0)
        return 99;

    for (int i = trainer_split(given, variables); i > 0; i--) putenv(variables[i - 1]);
    return trainer_main(trainer_split(command, words), words);
}

// Runs the trainer with these words in a directory, as so many processes; environment: NAME=VALUE
// and blanks. The exit code, or 128 and the signal; of the first process that failed.
static int trainer_run(const char *directory, const char *arguments, const char *environment,
                       int processes) {
    pid_t children[EXCHANGE_PROCESSES];
    int port = 0, listener = -1, code = 0;
    fflush(NULL);
    if (processes > 1) {
        exchange_prepare(processes);
        listener = trainer_listen(&port);
    }
    for (int rank = 0; rank < processes; rank++) {
        if ((children[rank] = fork()) < 0) perror("fork"), abort();
        if (children[rank] > 0) continue;
        if (processes > 1) { // as torchrun does
            trainer_set("WORLD_SIZE", processes), trainer_set("LOCAL_WORLD_SIZE", processes);
            trainer_set("RANK", rank), trainer_set("LOCAL_RANK", rank);
            setenv("MASTER_ADDR", "127.0.0.1", 1), trainer_set("MASTER_PORT", port);
            if (rank == 0) trainer_set(COMM_LISTENER, listener);
            if (rank > 0) close(listener);
        }
        exit(trainer_child(directory, arguments, environment));
    }
    if (listener >= 0) close(listener);
    for (int ended = 0; ended < processes; ended++) {
        int status = 0;
        waitpid(-1, &status, 0);
        if (code != 0 || status == 0) continue;
        code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        // they would wait for it
        for (int rank = 0; rank < processes; rank++) kill(children[rank], SIGKILL);
    }
    return code;
}
