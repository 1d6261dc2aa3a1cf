package actors

import "errors"

var (
	// ErrStopped reports that the actor system is closing or closed.
	ErrStopped = errors.New("actors: stopped")
	// ErrCanceled reports a wait given up because the caller's done channel closed.
	ErrCanceled = errors.New("actors: wait canceled")
)
