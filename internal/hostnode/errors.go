package hostnode

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/internal/limits"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// Unknown is an error for something that does not exist, such as a method.
type Unknown string

func (e Unknown) Error() string { return string(e) }

// codes maps errors to the codes by which they travel, special errors first.
type codes []struct {
	err  error
	code wire.Code
}

// errorCodes maps all errors except those of a directory.
var errorCodes = codes{
	{bus.ErrTooLarge, wire.CodeTooLarge},
	{bus.ErrWindowFull, wire.CodeWindowFull},
	{bus.ErrNoEdge, wire.CodeUnknown},
	{bus.ErrOverloaded, wire.CodeOverloaded},
	{bus.ErrClosed, wire.CodeClosing},
	{bus.ErrCanceled, wire.CodeClosing}, // the session ended
	{bus.ErrEnded, wire.CodeOver},
	{bus.ErrAborted, wire.CodeOver},
	{bus.ErrDeadline, wire.CodeOver},
	{shmstore.ErrMemory, wire.CodeMemory},
	{bus.ErrPayload, wire.CodeInvalid},
	{bus.ErrConfig, wire.CodeInvalid},
	{bus.ErrAfterEnd, wire.CodeInvalid},
	{connector.ErrNotFound, wire.CodeNothing},
	{connector.ErrFull, wire.CodeOverloaded},
	{connector.ErrKey, wire.CodeInvalid},
	{connector.ErrUnavailable, wire.CodeMemory}, // a table has no other cause
}

// directoryCodes maps the errors of a directory.
var directoryCodes = codes{
	{lane.ErrNotPublished, wire.CodeNothing},
	{lane.ErrPublished, wire.CodeTaken},
	{lane.ErrFull, wire.CodeOverloaded},
	{lane.ErrUnavailable, wire.CodeClosing},
	{cudaipc.ErrInvalid, wire.CodeInvalid},
}

// answer makes the answer to a question that failed.
func (all codes) answer(token uint32, err error) *wire.Failed {
	m := &wire.Failed{Token: token, Code: wire.CodeInternal, Text: err.Error()}
	if _, unknown := errors.AsType[Unknown](err); unknown {
		m.Code = wire.CodeUnknown
		return m
	}
	for _, c := range all {
		if errors.Is(err, c.err) {
			m.Code = c.code
			break
		}
	}
	return m
}

// sentinel returns the error of a code; nil: the table has none.
func (all codes) sentinel(code wire.Code) error {
	for _, c := range all {
		if c.code == code {
			return c.err
		}
	}
	return nil
}

// Failed makes the answer to a question that failed. If this process lacks memory or descriptors, the
// text names the process: the same error may tell the client to raise its own limits.
func Failed(token uint32, err error) *wire.Failed {
	m := errorCodes.answer(token, err)
	if l, lacks := limits.Met(err); lacks {
		m.Code, m.Text = wire.CodeMemory, fmt.Sprintf("%v: in the host, process %d: %s", err, os.Getpid(), l.Advice)
	}
	return m
}

// Error returns the error of an answer made by Failed. CodeUnknown has many causes and no sentinel.
func Error(f *wire.Failed) error {
	failed := &wire.Error{Code: f.Code, Text: f.Text}
	if f.Code == wire.CodeUnknown {
		return failed
	}
	if sentinel := errorCodes.sentinel(f.Code); sentinel != nil {
		return &remoteError{sentinel, failed}
	}
	return failed
}

// DirectoryFailed makes the answer to a question about descriptors that failed.
func DirectoryFailed(token uint32, err error) *wire.Failed { return directoryCodes.answer(token, err) }

// DirectoryError turns the error of a question into one of the directory's errors.
func DirectoryError(err error) error {
	var failed *wire.Error
	switch {
	case errors.Is(err, bus.ErrHostGone):
		return fmt.Errorf("%w: %w", lane.ErrUnavailable, err)
	case errors.As(err, &failed):
		if of := directoryCodes.sentinel(failed.Code); of != nil {
			return fmt.Errorf("%w: %w", of, failed)
		}
	}
	return err
}

// remoteError is an error with the host's text, which mostly begins with the sentinel's text.
type remoteError struct {
	sentinel error
	remote   *wire.Error
}

func (e *remoteError) Error() string {
	if rest := TextBehind(e.sentinel, e.remote.Text); rest != "" {
		return e.sentinel.Error() + ": " + rest
	}
	return e.sentinel.Error()
}

func (e *remoteError) Unwrap() []error { return []error{e.sentinel, e.remote} }

// TextBehind returns an error's text without the leading text of a sentinel, for a process that adds
// it.
func TextBehind(sentinel error, text string) string {
	return strings.TrimPrefix(strings.TrimPrefix(text, sentinel.Error()), ": ")
}
