package actors

import (
	"context"
	"log/slog"
)

// libraryLog forwards the log records of protoactor. Records below warning level
// become debug records: at info level protoactor reports that a system has started,
// which a program that uses the bus does not know, and each recovered panic, which
// the bus reports itself with more detail.
type libraryLog struct{ slog.Handler }

func newLibraryLog(logger *slog.Logger) *slog.Logger {
	return slog.New(libraryLog{logger.Handler()}).With("lib", "protoactor")
}

func lowered(l slog.Level) slog.Level {
	if l >= slog.LevelWarn {
		return l
	}
	return min(l, slog.LevelDebug)
}

func (h libraryLog) Enabled(ctx context.Context, l slog.Level) bool {
	return h.Handler.Enabled(ctx, lowered(l))
}

func (h libraryLog) Handle(ctx context.Context, r slog.Record) error {
	r.Level = lowered(r.Level)
	return h.Handler.Handle(ctx, r)
}

func (h libraryLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return libraryLog{h.Handler.WithAttrs(attrs)}
}

func (h libraryLog) WithGroup(name string) slog.Handler {
	return libraryLog{h.Handler.WithGroup(name)}
}
