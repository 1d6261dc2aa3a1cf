package ring

import (
	"fmt"
	"strconv"

	"github.com/omnibus-runtime/omnibus/connector"
)

// metaEntry is the key of an entry's number in the metadata, as hexadecimal text: JSON has no whole
// numbers of 64 bits.
const metaEntry = "entry"

// Metadata names the entry with a number, so that a Get with it returns no later entry of the same
// key.
func Metadata(number uint64) connector.Metadata {
	return connector.Metadata{metaEntry: strconv.FormatUint(number, 16)}
}

// Number returns the number that metadata name, or 0 if they name none.
func Number(meta connector.Metadata) (uint64, error) {
	if meta[metaEntry] == nil {
		return 0, nil
	}
	text, err := meta.Text(metaEntry)
	if err != nil {
		return 0, err
	}
	number, err := strconv.ParseUint(text, 16, 64)
	if err != nil || number == 0 {
		return 0, fmt.Errorf("%w: %q is no number of an entry", connector.ErrMetadata, text)
	}
	return number, nil
}
