/* Reads records in Avro or Protobuf from standard input, each alone in an array of its size, so that no
   read beyond it is missed. Input: the table of powers, then per batch as int64 whether it is Protobuf,
   the sizes of the tables, the root and the room of the output, the tables, the number of records, and
   each with its length. */

#include "../wire/harness.h"

int main(void)
{
    int64_t n_read = 0, is_protobuf;
    read_powers();
    while ((is_protobuf = number()) >= 0) {
        int64_t n_types = number(), n_parts = number(), n_names = number();
        struct texts texts = {.root = number(), .is_protobuf = is_protobuf};
        int64_t room = number();
        texts.types = given(n_types, sizeof *texts.types);
        texts.parts = given(n_parts, sizeof *texts.parts), texts.names = given(n_names, 1);
        texts.slots = array(n_parts, sizeof *texts.slots);
        for (int64_t n = number(); n; n--) {
            int64_t size = number(), start = 0, found, place, most = n % 7 ? room : 100000;
            byte *data = given(size, 1), *out = array(most, 1);
            texts.to = out, texts.end = out + most;
            texts.starts = &place, texts.sizes = &found;
            texts_to_json(data, &start, &size, 1, &texts);
            n_read += found >= 0;
            free(data), free(out);
        }
        free((void *)texts.types), free((void *)texts.parts), free((void *)texts.names);
        free(texts.slots);
    }
    printf("%lld\n", (long long)n_read);
    return 0;
}
