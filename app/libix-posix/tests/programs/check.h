/* For programs that end when a call fails. */
#pragma once
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The result of a call. If it failed, names it and ends the program. */
#define CHECK(call)                                                          \
    ({                                                                       \
        long result_ = (call);                                               \
        if (result_ < 0) {                                                   \
            fprintf(stderr, "%s: %s\n", #call, strerror(errno));             \
            exit(1);                                                         \
        }                                                                    \
        (int)result_;                                                        \
    })
