package nbd

import (
	"context"
	"log/slog"
	"time"

	"samovar/internal/block"
	"samovar/internal/fault"
)

// Dialer connects to servers. Its zero value works; zero fields mean the defaults named here.
type Dialer struct {
	Pool         *block.Pool   // for data of reads; default: an own one for each client
	Logger       *slog.Logger  // default: nothing is logged
	MaxRequests  int           // in flight; 256
	MaxBytes     int64         // in flight, of payloads both ways; 64 MiB
	CloseTimeout time.Duration // for requests in flight when the client is closed, and for the goodbye; 30 s
}

// Dial connects with the default dialer. address is one of the forms of ParseAddress; export may be empty if
// the address names it.
func Dial(ctx context.Context, address, export string) (*Client, error) {
	return Dialer{}.Dial(ctx, address, export)
}

// Dial connects, opens the export and returns it as a device.
func (d Dialer) Dial(ctx context.Context, address, export string) (*Client, error) {
	op := "nbd: open " + address
	where, name, err := target(address, export)
	if err != nil {
		return nil, err
	}
	if name != "" {
		op = "nbd: open export " + name + " at " + where.Address
	}
	g, err := greet(ctx, op, where)
	if err != nil {
		return nil, err
	}
	e, err := g.choose(optGo, name)
	if err != nil {
		g.abandon()
		return nil, err
	}
	if err := g.finish(); err != nil {
		g.conn.Close()
		return nil, err
	}
	return newClient(d, g.conn, g.in, e), nil
}

// List returns the names of a server's exports.
func List(ctx context.Context, address string) ([]string, error) {
	where, _, err := target(address, "")
	if err != nil {
		return nil, err
	}
	g, err := greet(ctx, "nbd: list exports of "+where.Address, where)
	if err != nil {
		return nil, err
	}
	defer g.abandon()
	return g.list()
}

// Info asks about an export without opening it.
func Info(ctx context.Context, address, export string) (Export, error) {
	where, name, err := target(address, export)
	if err != nil {
		return Export{}, err
	}
	g, err := greet(ctx, "nbd: export "+name+" at "+where.Address, where)
	if err != nil {
		return Export{}, err
	}
	defer g.abandon()
	return g.choose(optInfo, name)
}

// target joins an address and a separately given name, which must not contradict each other.
func target(address, export string) (Address, string, error) {
	where, name, err := ParseAddress(address)
	switch {
	case err != nil:
		return Address{}, "", err
	case export == "":
		return where, name, nil
	case name != "" && name != export:
		return Address{}, "", fault.New(fault.Invalid, "nbd: address "+address, "it names another export than "+export)
	}
	return where, export, nil
}
