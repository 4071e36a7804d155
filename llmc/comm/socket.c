// See socket.h.
#include "llmc/comm/socket.h"

#include "llmc/base/clock.h"

#include <errno.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    CONNECT_SECONDS = 10
}; // an address that swallows packets must not use up the time of the next one

int socket_open(const char *host, int port, double connect_seconds, Error *reason) {
    const struct addrinfo hints = {.ai_flags = AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    const int on = 1, off = 0;
    const double deadline = now_seconds() + connect_seconds;
    struct addrinfo *found = NULL;
    char number[16];
    int fd = -1;

    snprintf(number, sizeof number, "%d", port);
    const int failed = getaddrinfo(host, number, &hints, &found);
    if (failed) error_set(reason, "%s", gai_strerror(failed));

    for (const struct addrinfo *a = found; a && fd < 0; a = a->ai_next) {
        int status;
        fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        if (connect_seconds > 0) {
            status = connect(fd, a->ai_addr, a->ai_addrlen);
            // the second call says what became of the first
            if (status != 0 && errno == EINPROGRESS) {
                const double left = fmin(deadline - now_seconds(), CONNECT_SECONDS);
                poll(&(struct pollfd){fd, POLLOUT, 0}, 1, (int)(1e3 * fmax(left, 0)));
                status = connect(fd, a->ai_addr, a->ai_addrlen);
            }
        } else {
            setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
            // "::" takes IPv4 connections, too
            setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
            status = bind(fd, a->ai_addr, a->ai_addrlen);
            if (status == 0) status = listen(fd, SOMAXCONN);
        }

        if (status == 0) break;
        error_set(reason, "%s", strerror(errno));
        if (fd >= 0) close(fd);
        fd = -1;
    }

    if (found) freeaddrinfo(found);
    return fd;
}

int socket_listen(const char *host, int port, Error *reason) {
    const bool local =
        strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0 || strcmp(host, "localhost") == 0;
    if (local) return socket_open(host, port, 0, reason);
    const int fd = socket_open("::", port, 0, reason);
    if (fd >= 0) return fd;
    return socket_open("0.0.0.0", port, 0, reason); // without IPv6
}
