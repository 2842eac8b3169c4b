package link

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"samovar/internal/block"
	"samovar/internal/fault"
	"samovar/internal/replication"
	"samovar/internal/volume"
	"samovar/internal/wire"
)

// inbox remembers what one end received.
type inbox struct {
	mu       sync.Mutex // guards what follows
	messages []replication.Message
	closed   int
	after    int // messages after the end
	changed  chan struct{}
}

func newInbox() *inbox { return &inbox{changed: make(chan struct{}, 1)} }

func (b *inbox) Received(messages []replication.Message) {
	b.mu.Lock()
	if b.closed > 0 {
		b.after += len(messages)
	}
	b.messages = append(b.messages, messages...)
	b.mu.Unlock()
	b.wake()
}

func (b *inbox) Closed(error) {
	b.mu.Lock()
	b.closed++
	b.mu.Unlock()
	b.wake()
}

func (b *inbox) wake() {
	select {
	case b.changed <- struct{}{}:
	default:
	}
}

// await waits until n messages came, and if end is set, until the session ended.
func (b *inbox) await(t *testing.T, n int, end bool) []replication.Message {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		b.mu.Lock()
		got, closed := b.messages, b.closed
		b.mu.Unlock()
		if len(got) >= n && (!end || closed > 0) {
			if closed > 1 || b.after > 0 {
				t.Fatalf("closed %d times, %d messages after it", closed, b.after)
			}
			return got
		}
		select {
		case <-b.changed:
		case <-deadline:
			t.Fatalf("%d of %d messages, closed %d times", len(got), n, closed)
		}
	}
}

// router accepts sessions, or refuses them.
type router struct {
	refuse error
	recv   *inbox
	links  chan Link
}

func (r *router) Open(_ replication.Message, l Link) (Receiver, error) {
	if r.refuse != nil {
		return nil, r.refuse
	}
	r.links <- l
	return r.recv, nil
}

func newRouter() *router { return &router{recv: newInbox(), links: make(chan Link, 10)} }

var testTarget = Target{Volume: volume.ID{1}, Pool: volume.PoolID{2}, Epoch: 3, Size: 1 << 30}

func options() Options {
	return Options{Cluster: [16]byte{9}, Buffers: block.NewPool(), Counters: &Counters{}, Handshake: 2 * time.Second}
}

// serve listens on loopback.
func serve(t *testing.T, o Options, r Router) (address string, stop func()) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, ln, o, r, slog.New(slog.DiscardHandler)) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(20 * time.Second):
			t.Error("the listener does not end")
		}
	})
	t.Cleanup(stop)
	return ln.Addr().String(), stop
}

func hello() replication.Message {
	c := volume.Configuration{
		Volume: testTarget.Volume, Name: "tea", Size: testTarget.Size, Layout: volume.Mirrored(testTarget.Size, volume.DefaultExtentSize),
		Groups:   []volume.Group{{Members: []volume.Member{{Pool: testTarget.Pool, InSync: true}}}},
		Protocol: "C", Epoch: testTarget.Epoch, Engine: volume.EngineID{4}, Generation: 1, GenerationID: volume.GenerationID{5},
	}
	return replication.Message{
		Kind: replication.Hello, Volume: testTarget.Volume, Pool: testTarget.Pool, Fence: c.Fence(), Configuration: &c,
	}
}

func writeOf(o Options, id uint64, n int) replication.Message {
	b := o.Buffers.Get(n)
	clear(b.Bytes())
	b.Bytes()[0] = byte(id)
	return replication.Message{
		Kind: replication.Write, ID: id, Range: volume.Range{Offset: id % 64 << 20, Length: uint64(n)},
		Volume: testTarget.Volume, Pool: testTarget.Pool, Payload: b,
	}
}

func ackOf(id uint64) replication.Message {
	return replication.Message{Kind: replication.Ack, ID: id, Volume: testTarget.Volume, Pool: testTarget.Pool}
}

// ends makes a session of one kind: both links, and what each end receives.
type ends func(t *testing.T, o Options) (near, far Link, nearIn, farIn *inbox)

func connEnds(t *testing.T, o Options) (near, far Link, nearIn, farIn *inbox) {
	t.Helper()
	r := newRouter()
	address, _ := serve(t, o, r)
	c, err := Dial(t.Context(), o, wire.Engine, address, testTarget)
	if err != nil {
		t.Fatal(err)
	}
	nearIn = newInbox()
	c.Run(nearIn, nil)
	c.Send([]replication.Message{hello()})
	t.Cleanup(c.Close)
	return c, <-r.links, nearIn, r.recv
}

func localEnds(t *testing.T, _ Options) (near, far Link, nearIn, farIn *inbox) {
	t.Helper()
	nearIn, farIn = newInbox(), newInbox()
	near, err := Local(nearIn, func(l Link) (Receiver, error) {
		far = l
		return farIn, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	near.Send([]replication.Message{hello()})
	return near, far, nearIn, farIn
}

func kindOf(err error) fault.Kind { return fault.KindOf(err) }
