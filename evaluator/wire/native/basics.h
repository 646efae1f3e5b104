/* Types, and two classes of characters. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

typedef unsigned char byte;

static const byte *skip_space(const byte *at)
{
    while (*at == ' ' || *at == '\n' || *at == '\t' || *at == '\r')
        at++;
    return at;
}

static bool is_digit(byte c)
{
    return (unsigned)c - '0' < 10;
}
