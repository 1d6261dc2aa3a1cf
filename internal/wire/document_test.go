package wire_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/internal/wire"
)

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
