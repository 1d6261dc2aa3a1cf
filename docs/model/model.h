/*
 * Definitions that the models share. Spin runs the C preprocessor over each of them.
 *
 * MUT selects a planted mistake; 0 is the protocol. scripts/model.sh reads the
 * sizes and the mistakes from the first comment of each model:
 *
 *     small: FLAGS   runs of the protocol, also the flags of its mistakes
 *     full:  FLAGS   runs of the protocol that take longer
 *     MUT n  the mistake -> the promise that breaks
 *
 * Flags with -DNP look for cycles instead: there must be none without progress,
 * which is the promise no_idle_cycle.
 */
#ifndef MUT
#define MUT 0
#endif

/*
 * A promise is a symbolic constant, declared as an mtype at the head of its
 * model. It is never 0, so the second operand is false; it makes Spin print the
 * name: "text of failed assertion: assert(((...)||!(name)))".
 */
#define CHECK(promise, condition) assert((condition) || !(promise))

/* The directory word: a generation and one of four states, as in layout.go. */
#define EMPTY       0
#define RESERVED(g) (4 * (g))
#define LIVE(g)     (4 * (g) + 1)
#define CLOSING(g)  (4 * (g) + 2)
#define ABORTED(g)  (4 * (g) + 3)
#define GEN(w)      ((w) / 4)
#define STATE(w)    ((w) % 4)
#define isLive(w)      (STATE(w) == 1)
#define isAborted(w)   (STATE(w) == 3)
