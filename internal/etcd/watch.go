package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/metadata"

	"samovar/internal/etcd/kv"
	"samovar/internal/fault"
)

// watcher follows one prefix.
//
//	   from 0 or compacted        +--------- stream broken, member silent or leaderless ---+
//	          |                   v                                                        |
//	... --> list, deliver Resync --> stream from next on --> deliver changes, raise next --+
//	          ^                                                   |
//	          +---------------- compacted, store set back --------+
//
// It holds one reply at a time. While the reader is busy nothing is received, gRPC's window fills, and the member
// keeps the watcher among those that catch up from its history; if that was compacted meanwhile, a Resync follows.
type watcher struct {
	client *Client
	prefix string
	next   int64 // the revision to go on from; 0: relist
	out    chan<- kv.Event
}

// Watch follows prefix.
func (c *Client) Watch(ctx context.Context, prefix string, from int64) <-chan kv.Event {
	out := make(chan kv.Event)
	w := &watcher{client: c, prefix: prefix, next: max(from, 0), out: out}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(c.closing, cancel)
	ok := c.start(func() {
		defer close(out)
		defer cancel()
		defer stop()
		w.run(ctx)
	})
	if !ok {
		cancel()
		close(out)
	}
	return out
}

func (w *watcher) run(ctx context.Context) {
	for failures := 0; ctx.Err() == nil; {
		err := w.resync(ctx)
		began := w.next
		if err == nil {
			err = w.follow(ctx)
		}
		if errors.Is(err, errRelist) {
			w.next = 0
			continue
		}
		if w.next != began {
			failures = 0
		}
		w.client.opts.Logger.Debug("a watch goes on after a pause", "prefix", w.prefix, "revision", w.next, "error", err)
		if failures++; failures > len(w.client.pool.endpoints) {
			wait(ctx, min(50*time.Millisecond<<min(failures, 5), time.Second))
		}
	}
}

// errRelist says that the changes cannot be had one by one any more.
var errRelist = errors.New("the history is compacted or was set back")

// resync delivers the whole prefix if the watch does not know where it stands.
func (w *watcher) resync(ctx context.Context) error {
	if w.next != 0 {
		return nil
	}
	list, err := w.client.List(ctx, w.prefix)
	if err != nil {
		return err
	}
	event := kv.Event{Revision: list.Revision, Resync: true}
	for _, r := range list.Items {
		event.Items = append(event.Items, kv.Item{KV: r})
	}
	w.next = list.Revision + 1
	return w.deliver(ctx, event)
}

// follow streams changes from one endpoint until something breaks.
func (w *watcher) follow(ctx context.Context) error {
	ep := w.client.pool.pick()
	alive, _, release := ep.use()
	defer release()
	streamCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(alive, cancel)()
	// Until the member has confirmed the watch it counts as an ordinary call; later silence is the prober's to notice.
	starting := time.AfterFunc(maxAttempt, cancel)
	defer starting.Stop()

	err := w.stream(streamCtx, ctx, ep, func() { starting.Stop() })
	if ctx.Err() == nil && !errors.Is(err, errRelist) {
		w.client.pool.avoid(ep)
	}
	return err
}

func (w *watcher) stream(streamCtx, ctx context.Context, ep *endpoint, started func()) error {
	if !ep.admitted.Load() {
		if err := w.client.pool.admit(streamCtx, ep); err != nil {
			return err
		}
	}
	// A member that loses its leader ends the stream: a watch on a minority would be silent for ever.
	streamCtx = metadata.AppendToOutgoingContext(streamCtx, rpctypes.MetadataRequireLeaderKey, rpctypes.MetadataHasLeader)
	stream, err := ep.watch.Watch(streamCtx)
	if err != nil {
		return err
	}
	prefix := full(w.prefix)
	err = stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{
		Key: prefix, RangeEnd: prefixEnd(prefix), StartRevision: w.next, ProgressNotify: true}}})
	if err != nil {
		return err
	}
	for {
		resp, err := stream.Recv()
		if err != nil {
			return err
		}
		switch {
		case resp.CompactRevision != 0:
			return errRelist
		case resp.Canceled:
			return fault.New(fault.Unavailable, "watch "+w.prefix, ep.address+" ended the watch: "+resp.CancelReason)
		case resp.Created:
			started()
			if err := w.checkPosition(ctx, resp.Header.GetRevision()); err != nil {
				return err
			}
		case len(resp.Events) == 0:
			// Progress: nothing happened under the prefix up to here, so a later compaction needs no relisting.
			w.next = max(w.next, resp.Header.GetRevision()+1)
		default:
			if err := w.deliverAll(ctx, resp.Events); err != nil {
				return err
			}
		}
	}
}

// checkPosition relists if the store is behind what this watch has seen: it was restored from an older copy. The
// member that serves the watch may merely lag, so the majority is asked.
func (w *watcher) checkPosition(ctx context.Context, revision int64) error {
	if revision >= w.next-1 {
		return nil
	}
	agreed, err := w.client.Revision(ctx)
	if err != nil {
		return err
	}
	if agreed < w.next-1 {
		return errRelist
	}
	return nil
}

// deliverAll passes changes on, one event a revision.
func (w *watcher) deliverAll(ctx context.Context, events []*mvccpb.Event) error {
	var event kv.Event
	for _, e := range events {
		if e.Kv.ModRevision < w.next {
			continue
		}
		if e.Kv.ModRevision != event.Revision {
			if err := w.deliver(ctx, event); err != nil {
				return err
			}
			event = kv.Event{Revision: e.Kv.ModRevision}
		}
		item := kv.Item{KV: record(e.Kv), Deleted: e.Type == mvccpb.Event_DELETE}
		event.Items = append(event.Items, item)
	}
	return w.deliver(ctx, event)
}

// deliver hands one event to the reader; the zero one is nothing.
func (w *watcher) deliver(ctx context.Context, event kv.Event) error {
	if event.Revision == 0 {
		return nil
	}
	select {
	case w.out <- event:
		w.next = event.Revision + 1
		return nil
	case <-ctx.Done():
		return fmt.Errorf("watch %s: %w", w.prefix, ctx.Err())
	}
}
