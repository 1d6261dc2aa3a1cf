package process

import "errors"

// ErrGone reports that the process is dead.
var ErrGone = errors.New("the process is gone")
