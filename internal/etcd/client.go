package etcd

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"samovar/internal/etcd/kv"
	"samovar/internal/fault"
)

// Options describe a Client. Only Endpoints is needed.
type Options struct {
	// Endpoints are the client addresses (host:port) of the members, the preferred one first: a node that runs a
	// member names its own first, and comes to the others when that one does not serve.
	Endpoints []string
	// ClusterID, when known, is the only cluster that is spoken to. Otherwise the first that answers is kept to.
	ClusterID string
	// CallTimeout bounds every call beside the caller's own deadline. 5 s.
	CallTimeout time.Duration
	// ProbeInterval and ProbeTimeout are how often the endpoint in use is asked whether it lives and has a
	// leader, and how long it may take: a silent one is left after at most their sum. 500 ms and 1500 ms.
	ProbeInterval, ProbeTimeout time.Duration
	// Logger gets changes of endpoint and broken watches. Nil: nothing is logged.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&o.CallTimeout, 5*time.Second)
	def(&o.ProbeInterval, 500*time.Millisecond)
	def(&o.ProbeTimeout, 1500*time.Millisecond)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Client is a kv.Store over the client ports of a cluster's members, embedded or external.
type Client struct {
	opts Options
	pool *pool

	closing context.Context // ends when Close begins
	close   context.CancelFunc

	mu     sync.Mutex // guards closed, and the group against a Wait that begins while a member is added
	closed bool
	group  sync.WaitGroup // sessions, watches and the prober
}

var _ kv.Store = (*Client)(nil)

// Dial makes a client. It does not wait for a server: calls do, within their deadlines.
func Dial(opts Options) (*Client, error) {
	opts = opts.withDefaults()
	closing, cancel := context.WithCancel(context.Background())
	p, err := newPool(opts)
	if err != nil {
		cancel()
		return nil, err
	}
	c := &Client{opts: opts, pool: p, closing: closing, close: cancel}
	c.start(func() { p.probe(closing) })
	return c, nil
}

// start runs f in the client's group unless the client is closed, and tells whether it does.
func (c *Client) start(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.group.Go(f)
	return true
}

// Close abandons sessions, ends watches and waits for them.
func (c *Client) Close() error {
	c.mu.Lock()
	again := c.closed
	c.closed = true
	c.mu.Unlock()
	if again {
		return nil
	}
	c.close()
	c.group.Wait()
	return c.pool.close()
}

// Get reads one record.
func (c *Client) Get(ctx context.Context, key string) (kv.KV, error) {
	op := "get " + key
	if err := kv.CheckKey(op, key); err != nil {
		return kv.KV{}, err
	}
	resp, err := c.fetch(ctx, op, &pb.RangeRequest{Key: full(key)})
	if err != nil {
		return kv.KV{}, err
	}
	if len(resp.Kvs) == 0 {
		return kv.KV{}, fault.New(fault.NotFound, op, "no such record")
	}
	return record(resp.Kvs[0]), nil
}

// List reads every record under prefix.
func (c *Client) List(ctx context.Context, prefix string) (kv.Listing, error) {
	op := "list " + prefix
	if err := kv.CheckPrefix(op, prefix); err != nil {
		return kv.Listing{}, err
	}
	resp, err := c.fetch(ctx, op, &pb.RangeRequest{Key: full(prefix), RangeEnd: prefixEnd(full(prefix))})
	if err != nil {
		return kv.Listing{}, err
	}
	return kv.Listing{Revision: resp.Header.GetRevision(), Items: records(resp.Kvs)}, nil
}

// Revision is the present revision of the store.
func (c *Client) Revision(ctx context.Context) (int64, error) {
	resp, err := c.fetch(ctx, "read the store's revision", &pb.RangeRequest{Key: full(""), CountOnly: true})
	if err != nil {
		return 0, err
	}
	return resp.Header.GetRevision(), nil
}

// ClusterID names the cluster that answers.
func (c *Client) ClusterID(ctx context.Context) (string, error) {
	resp, err := c.fetch(ctx, "read the cluster's id", &pb.RangeRequest{Key: full(""), CountOnly: true})
	if err != nil {
		return "", err
	}
	return clusterName(resp.Header.GetClusterId()), nil
}

// fetch is a linearizable read.
func (c *Client) fetch(ctx context.Context, op string, req *pb.RangeRequest) (resp *pb.RangeResponse, err error) {
	err = c.read(ctx, op, func(ctx context.Context, ep *endpoint) error {
		var err error
		resp, err = ep.kv.Range(ctx, req)
		return err
	})
	return resp, err
}

// Put writes without a condition.
func (c *Client) Put(ctx context.Context, key string, value []byte) kv.Outcome {
	return c.transact(ctx, "put "+key, nil, []kv.Change{{Key: key, Value: value}})
}

// Delete removes a key.
func (c *Client) Delete(ctx context.Context, key string) kv.Outcome {
	return c.transact(ctx, "delete "+key, nil, []kv.Change{{Key: key, Remove: true}})
}

// CompareAndSwap writes if the key's ModRevision is expect.
func (c *Client) CompareAndSwap(ctx context.Context, key string, expect int64, value []byte, lease kv.LeaseID) kv.Outcome {
	return c.transact(ctx, "compare and swap "+key,
		[]kv.Condition{{Key: key, ModRevision: expect}}, []kv.Change{{Key: key, Value: value, Lease: lease}})
}

// Txn makes all changes if all conditions hold.
func (c *Client) Txn(ctx context.Context, conditions []kv.Condition, changes []kv.Change) kv.Outcome {
	op := "transaction"
	if len(changes) > 0 {
		op = fmt.Sprintf("transaction on %s (%d changes)", changes[0].Key, len(changes))
	}
	return c.transact(ctx, op, conditions, changes)
}

// transact is the one way in which anything is written.
func (c *Client) transact(ctx context.Context, op string, conditions []kv.Condition, changes []kv.Change) kv.Outcome {
	if err := kv.CheckTxn(op, conditions, changes); err != nil {
		return kv.Refused(err)
	}
	req := &pb.TxnRequest{}
	for _, cond := range conditions {
		key := full(cond.Key)
		req.Compare = append(req.Compare, &pb.Compare{Key: key, Target: pb.Compare_MOD, Result: pb.Compare_EQUAL,
			TargetUnion: &pb.Compare_ModRevision{ModRevision: cond.ModRevision}})
		req.Failure = append(req.Failure, &pb.RequestOp{Request: &pb.RequestOp_RequestRange{
			RequestRange: &pb.RangeRequest{Key: key}}})
	}
	for _, ch := range changes {
		if ch.Remove {
			req.Success = append(req.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{
				RequestDeleteRange: &pb.DeleteRangeRequest{Key: full(ch.Key)}}})
			continue
		}
		req.Success = append(req.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestPut{
			RequestPut: &pb.PutRequest{Key: full(ch.Key), Value: ch.Value, Lease: int64(ch.Lease)}}})
	}
	var resp *pb.TxnResponse
	outcome := c.write(ctx, op, func(ctx context.Context, ep *endpoint) error {
		var err error
		resp, err = ep.kv.Txn(ctx, req)
		return err
	})
	if outcome.Verdict != kv.Applied {
		return outcome
	}
	revision := resp.Header.GetRevision()
	if resp.Succeeded {
		return kv.Done(revision)
	}
	var current []kv.KV
	for _, r := range resp.Responses {
		current = append(current, records(r.GetResponseRange().GetKvs())...)
	}
	return kv.Conflicting(op, revision, conditions, current)
}

// Compact forgets the history before revision. Members do it by themselves; this is for tests and operators.
func (c *Client) Compact(ctx context.Context, revision int64) error {
	return c.read(ctx, "compact the history", func(ctx context.Context, ep *endpoint) error {
		_, err := ep.kv.Compact(ctx, &pb.CompactionRequest{Revision: revision, Physical: true})
		if rpctypes.Error(err) == rpctypes.ErrCompacted {
			return nil // an attempt before this one did it
		}
		return err
	})
}

func full(key string) []byte { return []byte(kv.Prefix + key) }

// prefixEnd is the first key after all keys that begin with prefix. Prefixes here begin with kv.Prefix and are
// UTF-8, which has no byte 0xff, so the last byte can always be raised.
func prefixEnd(prefix []byte) []byte {
	end := append([]byte(nil), prefix...)
	end[len(end)-1]++
	return end
}

func record(r *mvccpb.KeyValue) kv.KV {
	return kv.KV{Key: string(r.Key[len(kv.Prefix):]), Value: r.Value, CreateRevision: r.CreateRevision,
		ModRevision: r.ModRevision, Lease: kv.LeaseID(r.Lease)}
}

func records(rs []*mvccpb.KeyValue) []kv.KV {
	out := make([]kv.KV, 0, len(rs))
	for _, r := range rs {
		out = append(out, record(r))
	}
	return out
}

func clusterName(id uint64) string { return fmt.Sprintf("%016x", id) }
