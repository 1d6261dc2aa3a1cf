package codec

import "github.com/omnibus-runtime/omnibus/codec/internal/pack"

// Copy is the builtin copy, for payloads that do not overlap dst and that a consumer reads
// soon after, most likely on another processor. From 1 MiB on the
// builtin writes past the caches on many processors, so that the consumer waits for
// memory: a payload of 1 MiB then takes twice as long to arrive. Copy writes past the caches
// only if data is too long to stay in them.
func Copy[T ~[]byte | ~string](dst []byte, src T) int { return pack.Copy(dst, src) }
