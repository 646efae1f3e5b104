/* Reads records in Avro from standard input, each alone in an array of its size, so that no read
   beyond it is missed. Input: the table of powers, then per batch as int64 the sizes of the tables, the
   root and the room of the output, the tables, the number of records, and each with its length. */

#include "../wire/harness.h"

int main(void)
{
    int64_t n_read = 0, n_types;
    read_powers();
    while ((n_types = number()) >= 0) {
        int64_t n_parts = number(), n_texts = number();
        struct avro avro = {.root = number()};
        int64_t room = number();
        avro.types = given(n_types, sizeof *avro.types);
        avro.parts = given(n_parts, sizeof *avro.parts), avro.texts = given(n_texts, 1);
        for (int64_t n = number(); n; n--) {
            int64_t size = number(), start = 0, found, place;
            byte *data = given(size, 1), *out = array(n % 7 ? room : 100000, 1);
            avro.to = out, avro.end = out + (n % 7 ? room : 100000);
            avro.starts = &place, avro.sizes = &found;
            avro_to_json(data, &start, &size, 1, &avro);
            n_read += found >= 0;
            free(data), free(out);
        }
        free((void *)avro.types), free((void *)avro.parts), free((void *)avro.texts);
    }
    printf("%lld\n", (long long)n_read);
    return 0;
}
