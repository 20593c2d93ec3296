/* For programs whose calls all succeed, or that have nothing more to do. */
#pragma once
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a call answers; says which one failed, and ends the program. */
#define CHECK(call)                                                          \
    ({                                                                       \
        long result_ = (call);                                               \
        if (result_ < 0) {                                                   \
            fprintf(stderr, "%s: %s\n", #call, strerror(errno));             \
            exit(1);                                                         \
        }                                                                    \
        (int)result_;                                                        \
    })
