package actors

import "github.com/omnibus-runtime/omnibus/shmstore"

// Internals for the external tests of this package.

const ExtentSlots = extentSlots

// Keep makes the producer keep the rest of an extent that the writer granted for
// payloads of that size: the second half of a refill.
func (p *Producer) Keep(size int, rest []shmstore.Reservation) {
	p.keepRest(classOf(size), len(rest)+1, rest)
}

// Len is the number of messages queued.
func (st *Stage) Len() int { return st.mailbox.Len() }
