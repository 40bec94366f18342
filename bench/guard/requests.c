/* The requests that Valgrind understands, as functions that Python can call. Without Valgrind they do nothing. */

#include <valgrind/callgrind.h>

void begin(void)
{
    CALLGRIND_START_INSTRUMENTATION;
    CALLGRIND_ZERO_STATS;
}

/* Write the count since `begin` to a file of its own, which names the load. */
void end(const char *load)
{
    CALLGRIND_DUMP_STATS_AT(load);
    CALLGRIND_STOP_INSTRUMENTATION;
}
