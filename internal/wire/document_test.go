package wire_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// TestKindsAreDocumented holds the table of kinds to docs/protocol.md, whose
// tables have the number, the name and the direction of each.
func TestKindsAreDocumented(t *testing.T) {
	document := protocolPage(t)
	directions := map[string]wire.Direction{
		"to the host":             wire.ToHost,
		"to the client":           wire.ToClient,
		"both":                    wire.ToHost | wire.ToClient,
		"to a peer":               wire.ToPeer,
		"to the host or a peer":   wire.ToHost | wire.ToPeer,
		"to the client or a peer": wire.ToClient | wire.ToPeer,
		"both, and to a peer":     wire.ToHost | wire.ToClient | wire.ToPeer,
	}
	descriptors := []string{"", "one descriptor", "two descriptors", "three descriptors"}
	row := regexp.MustCompile("(?m)^\\| (\\d+) \\| `(\\w+)` \\| ([^|]*) \\| (.*)$")
	documented := map[wire.Kind]bool{}
	for _, match := range row.FindAllStringSubmatch(document, -1) {
		number, err := strconv.ParseUint(match[1], 10, 16)
		if err != nil {
			t.Fatal(err)
		}
		kind := wire.Kind(number)
		documented[kind] = true
		direction, ok := directions[match[3]]
		if !ok || kind.String() != match[2] || kind.Direction() != direction {
			t.Errorf("kind %d is %v with direction %d, documented as %s %s", number, kind, kind.Direction(), match[2], match[3])
		}
		most := kind.Descriptors()
		if got := regexp.MustCompile(`\w+ descriptors?\b`).FindString(match[4]); got != descriptors[most] {
			t.Errorf("%v comes with up to %d descriptors, documented as: %s", kind, most, match[4])
		}
	}
	for _, kind := range allKinds() {
		if !documented[kind] {
			t.Errorf("%v is not documented", kind)
		}
	}
}

// TestVersionIsDocumented holds docs/protocol.md to the version that the package speaks.
func TestVersionIsDocumented(t *testing.T) {
	spoken := fmt.Sprintf("This is version %d, the only one that a host accepts.", wire.Version)
	if !strings.Contains(protocolPage(t), spoken) {
		t.Errorf("docs/protocol.md does not say: %s", spoken)
	}
}

func protocolPage(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "docs", "protocol.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
