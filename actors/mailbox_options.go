package actors

import (
	"errors"
	"fmt"
)

const (
	// DefaultMailboxCapacity is the capacity of a mailbox, in messages, if the
	// options do not say otherwise.
	DefaultMailboxCapacity = 1024

	// MaxMailboxCapacity is the largest capacity that a mailbox may have, in
	// messages.
	MaxMailboxCapacity = 1 << 20
)

// errHandlerExited is the reason of the failure of a handler that ended its
// goroutine with runtime.Goexit.
var errHandlerExited = errors.New("actors: handler called runtime.Goexit")

// DropReason says why a message was dropped.
type DropReason uint8

const (
	// DropPanic: the handler panicked on the message.
	DropPanic DropReason = iota + 1
	// DropStopped: the message was waiting when its actor stopped.
	DropStopped
	// DropClosed: the message was sent to a mailbox that had closed.
	DropClosed
)

// String returns the reason as a word for logs and metric labels.
func (r DropReason) String() string {
	switch r {
	case DropPanic:
		return "panic"
	case DropStopped:
		return "stopped"
	case DropClosed:
		return "closed"
	}
	return fmt.Sprintf("DropReason(%d)", uint8(r))
}

// MailboxOptions configures a [Mailbox]. The zero value works.
type MailboxOptions struct {
	// Capacity is how many bounded messages may wait. The message that is being
	// handled does not wait any more. Zero means DefaultMailboxCapacity.
	Capacity int

	// Bounded reports whether a message counts against Capacity; nil means that
	// all messages do. The other messages, control messages, are always
	// accepted: an actor that sends them to itself does not wait for itself.
	// They keep their place in the order of messages. The mailbox does not
	// bound their number; their senders do.
	//
	// The library's PoisonPill and ReceiveTimeout are always control messages.
	// Bounded runs on the sender's goroutine, once for each message and
	// without its envelope. It must be safe for concurrent use.
	Bounded func(message any) bool

	// OnDrop, if not nil, is called for each message that was sent to the mailbox
	// and not handled to completion: exactly once, without its envelope, and with
	// no lock held. It runs on the goroutine of the actor or of a sender, so it
	// must be safe for concurrent use, and it must not panic.
	OnDrop func(message any, reason DropReason)
}

func (o MailboxOptions) withDefaults() MailboxOptions {
	if o.Capacity == 0 {
		o.Capacity = DefaultMailboxCapacity
	}
	return o
}
