package codec

import "github.com/omnibus-runtime/omnibus/codec/internal/pack"

// Copy is the builtin copy, for payloads that do not overlap what they are copied to:
// somebody reads them soon after, most likely on another processor. From 1 MiB on the
// builtin writes past the caches on many processors, so that whoever reads next waits for
// memory: a payload of 1 MiB then takes twice as long to arrive. This one does so where data
// is too long to stay in the caches.
func Copy[T ~[]byte | ~string](dst []byte, src T) int { return pack.Copy(dst, src) }
