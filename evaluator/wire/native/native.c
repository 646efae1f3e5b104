/* Record batches to columns, JSON text of ordinary rankings and judgments and of settled queries to
   columns, columns to output records and their batches (rows.h), and foreign records to messages
   (mapping.h), those with a schema by way of JSON (avro.h, protobuf.h).

   The decoder is sound, not complete: it accepts nothing that the models of
   wire/messages/models.py refuse, and stops before the first message that it does not accept,
   which the reference path then reads. It is plain C without Python.

   Why no access is out of bounds:
   - Each text ends with a NUL byte that is not part of it. No JSON contains one, so every loop
     over a text ends there at the latest, and every function that reads it refuses the message.
   - Words of eight bytes are read from a text only where it has as many.
   - Each item that is written was read from at least as many bytes as `Arrays` in library.py
     counts for it; mapping.h and texts.h compare with the end instead.

   The caller checks UTF-8: here a byte from 0x80 on is a byte of some character.
   A function that reads returns the position after what it read, or NULL to refuse the message. */

#include "basics.h"
#include "numbers.h"
#include "json.h"
#include "names.h"
#include "key_hashes.h"
#include "rankings.h"
#include "judgments.h"
#include "settled.h"
#include "record_sets.h"
#include "rows.h"
#include "doubles.h"
#include "mapped_values.h"
#include "mapping.h"
#include "texts.h"
#include "avro.h"
#include "protobuf.h"
