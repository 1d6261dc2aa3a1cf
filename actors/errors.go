package actors

import "errors"

var (
	// ErrStopped reports that the actor system is closing or closed.
	ErrStopped = errors.New("actors: stopped")
	// ErrCanceled reports a wait that ended because the caller's channel was closed.
	ErrCanceled = errors.New("actors: wait canceled")
)
