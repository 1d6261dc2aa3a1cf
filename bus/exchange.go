package bus

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/internal/exchange"
)

// DefaultExchangeTTL is how long a payload may lie in the exchange until a process
// comes for it.
const DefaultExchangeTTL = 10 * time.Minute

// newExchange opens the exchange of a bus.
func newExchange(opts Options) *exchange.Exchange {
	return exchange.New(exchange.Options{
		Store: opts.ExchangeStore, InlineBytes: opts.InlineBytes, TTL: max(opts.ExchangeTTL, 0),
		Logger: opts.Logger.With(slog.String("bus", opts.Name)),
	})
}

// closeExchange ends an exchange, once no client is left.
func closeExchange(x *exchange.Exchange) error {
	if err := x.Close(); err != nil {
		return fmt.Errorf("%w: %w", ErrNotClean, err)
	}
	return nil
}

// Exchange opens an end of the exchange for the process that hosts the bus:
// payloads under keys, for it and for the processes that are attached (see
// Exchange of package bus/node). What it puts lies in memory of its own, beside the bus's
// store: see Options.ExchangeStore.
func (b *Bus) Exchange() connector.Transport {
	end, _ := b.OpenExchange(false)
	return end
}

// OpenExchange implements [connector.Exchange]. It does not fail.
func (b *Bus) OpenExchange(lasting bool) (connector.Transport, error) {
	return b.exchange.Open(lasting), nil
}

// ExchangeStats are the figures of an exchange.
type ExchangeStats struct {
	Entries int   `json:"entries"` // payloads that no process has fetched yet
	Bytes   int64 `json:"bytes"`   // of those
	Swept   int64 `json:"swept"`   // payloads that no process came for
}

func exchangeStats(x *exchange.Exchange) ExchangeStats {
	if x == nil { // a node's
		return ExchangeStats{}
	}
	return ExchangeStats(x.Stats())
}
