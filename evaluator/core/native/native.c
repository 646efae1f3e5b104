/* Lists of scores and grades -> what measures see of them: the same as core/dense.py, to the bit.

   It is plain C without Python: library.py hands over arrays. Numbers are compared and moved, never
   computed with, so no flag of a compiler can change a result.

   Why no access is out of bounds: no list is wider than MOST_COLUMNS, nor is any empty, which
   library.py sees to, and a block has room for lists of that width and one column more. Ranks within
   a list are all different, from 0 to before its width; positions that are given are checked. */

#include "basics.h"
#include "order.h"
#include "dense.h"
#include "align.h"
#include "merge.h"
