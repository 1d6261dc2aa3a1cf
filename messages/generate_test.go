package messages_test

import (
	"pgregory.net/rapid"

	"github.com/omnibus-runtime/omnibus/messages"
)

// handles draws any handle that a store could have made.
func handles() *rapid.Generator[messages.Handle] {
	return rapid.Custom(func(t *rapid.T) messages.Handle {
		return messages.Handle{
			Store:  rapid.Uint64().Draw(t, "store"),
			Gen:    rapid.Uint64Min(1).Draw(t, "gen"),
			Offset: rapid.Uint64().Draw(t, "offset"),
			Size:   rapid.Uint64().Draw(t, "size"),
			Slot:   rapid.Uint32().Draw(t, "slot"),
			Codec:  rapid.Uint32().Draw(t, "codec"),
		}
	})
}
