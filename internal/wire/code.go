package wire

import (
	"fmt"
	"strconv"
)

// Code is the reason of a failure. It is an error itself, the target for errors.Is:
//
//	if errors.Is(err, wire.CodeOver) { ... }
//
// Unknown codes are kept as they are.
type Code uint16

// The codes of the protocol.
const (
	OK             Code = 0  // success
	CodeProtocol   Code = 1  // the bytes or the order of messages are wrong
	CodeVersion    Code = 2  // no common version
	CodeBus        Code = 3  // the host has a bus of another name
	CodeDenied     Code = 4  // the user, the process or its pid namespace
	CodeUnknown    Code = 5  // no such stage, edge, request, task, delivery, segment or method
	CodeTaken      Code = 6  // the stage runs inside the host, or the name is another descriptor's
	CodeTooLarge   Code = 7  // the payload exceeds the host's limit for one payload, or the store
	CodeWindowFull Code = 8  // the edge's policy is fail
	CodeOver       Code = 9  // the request has ended
	CodeClosing    Code = 10 // the host is draining or closing, or the session ended before an emission was made
	CodeOverloaded Code = 11 // the request got no permit, or the client exceeds one of its bounds
	CodeMemory     Code = 12 // the host lacks memory or descriptors
	CodeInvalid    Code = 13 // an argument has no valid value
	CodeInternal   Code = 14 // a fault of the host
	CodeNothing    Code = 15 // no payload under the key, or no descriptor under the name
)

// ErrProtocol matches every error of [Next], [Parse] and [Decode].
const ErrProtocol = CodeProtocol

var codeWords = [...]string{
	OK:             "ok",
	CodeProtocol:   "protocol",
	CodeVersion:    "version",
	CodeBus:        "bus",
	CodeDenied:     "denied",
	CodeUnknown:    "unknown",
	CodeTaken:      "taken",
	CodeTooLarge:   "too large",
	CodeWindowFull: "window full",
	CodeOver:       "over",
	CodeClosing:    "closing",
	CodeOverloaded: "overloaded",
	CodeMemory:     "memory",
	CodeInvalid:    "invalid",
	CodeInternal:   "internal",
	CodeNothing:    "nothing there",
}

// String returns the code's word in the protocol.
func (c Code) String() string { return word(codeWords[:], c, "code") }

// Error returns the same as String.
func (c Code) Error() string { return c.String() }

// Error is a failure as it travels: a code for programs, a text for people.
// errors.Is(err, e.Code) holds.
type Error struct {
	Code Code
	Text string // the cause, its place and the remedy; may be empty
}

// Error returns the code's word and the text.
func (e *Error) Error() string {
	if e.Text == "" {
		return e.Code.String()
	}
	return e.Code.String() + ": " + e.Text
}

// Unwrap returns the code.
func (e *Error) Unwrap() error { return e.Code }

// protocolError is the error for bytes that break the protocol.
func protocolError(format string, args ...any) error {
	return &Error{Code: CodeProtocol, Text: fmt.Sprintf(format, args...)}
}

// word returns the word of an enumerated value, or its type, what, and its number.
func word[T ~uint8 | ~uint16](words []string, value T, what string) string {
	if int(value) < len(words) && words[value] != "" {
		return words[value]
	}
	return what + " " + strconv.Itoa(int(value))
}
