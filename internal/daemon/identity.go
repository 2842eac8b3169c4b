package daemon

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"samovar/internal/etcd/kv"
	"samovar/internal/fault"
)

// identity is the file node.json in a node's directory: whose directory it is. Written once. The sum is the crc32c of
// the line without it (docs/format/node.md).
type identity struct {
	Format  string `json:"format"` // "samovar-node"
	Version int    `json:"version"`
	Node    string `json:"node"`
	Cluster string `json:"cluster"` // 32 hexadecimal digits
	Sum     string `json:"sum"`
}

const (
	identityFormat  = "samovar-node"
	identityVersion = 1
)

func (i identity) sum() string {
	i.Sum = ""
	b, err := json.Marshal(i)
	if err != nil {
		panic("encode identity: " + err.Error()) // strings and a number always encode
	}
	return fmt.Sprintf("%08x", crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
}

// lockDir makes sure that one process uses a node's directory. The lock ends with the process.
func lockDir(dir string) (*os.File, error) {
	op := "use directory " + dir
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fault.Wrap(fault.IO, op, err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fault.Wrap(fault.IO, op, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close() // the lock is what failed
		return nil, fault.New(fault.Busy, op, "another samovar uses it; stop that one, or give this one its own directory")
	}
	return f, nil
}

// readIdentity reads whose directory it is; ok is false on a first start.
func readIdentity(dir, node string) (cluster [16]byte, ok bool, err error) {
	path := filepath.Join(dir, "node.json")
	op := "read " + path
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return cluster, false, nil
	}
	if err != nil {
		return cluster, false, fault.Wrap(fault.IO, op, err)
	}
	var i identity
	if err := json.Unmarshal(b, &i); err != nil || i.Format != identityFormat {
		return cluster, false, fault.New(fault.Corrupt, op, "it is damaged; restore it from a copy, or empty the directory if this node is to start anew")
	}
	if i.Version > identityVersion {
		return cluster, false, fault.New(fault.Newer, op, fmt.Sprintf("it has version %d, this samovar knows up to %d: use a newer one", i.Version, identityVersion))
	}
	id, err := hex.DecodeString(i.Cluster)
	if err != nil || len(id) != 16 || i.Sum != i.sum() {
		return cluster, false, fault.New(fault.Corrupt, op, "its checksum is wrong; restore it from a copy, or empty the directory if this node is to start anew")
	}
	if i.Node != node {
		return cluster, false, fault.New(fault.Foreign, op, "the directory belongs to node "+i.Node+", this one is "+node)
	}
	return [16]byte(id), true, nil
}

// writeIdentity is the first start's last step.
func writeIdentity(dir, node string, cluster [16]byte) error {
	i := identity{Format: identityFormat, Version: identityVersion, Node: node, Cluster: hex.EncodeToString(cluster[:])}
	i.Sum = i.sum()
	b, err := json.Marshal(i)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, "node.json")
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err == nil {
		_, err = f.Write(append(b, '\n'))
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err == nil {
		err = syncDir(dir)
	}
	if err != nil {
		return fault.Wrap(fault.IO, "write "+path, err)
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// clusterRecord is the identity of the cluster in its store.
type clusterRecord struct {
	ID      string    `json:"id"`
	Created time.Time `json:"created"`
}

// joinCluster learns the cluster's id from its store, or gives it one: whoever comes first does.
func joinCluster(ctx context.Context, store kv.Store, log *slog.Logger) (id [16]byte, err error) {
	told := ""
	for {
		r, err := store.Get(ctx, "cluster")
		if err == nil {
			var c clusterRecord
			if err := json.Unmarshal(r.Value, &c); err != nil {
				return id, fault.Wrap(fault.Corrupt, "read the cluster's identity in its store", err)
			}
			b, err := hex.DecodeString(c.ID)
			if err != nil || len(b) != 16 {
				return id, fault.New(fault.Corrupt, "read the cluster's identity in its store", "it is no id: "+c.ID)
			}
			return [16]byte(b), nil
		}
		if !fault.Is(err, fault.NotFound) && err.Error() != told && ctx.Err() == nil {
			told = err.Error()
			log.Warn("cannot join the cluster yet", "error", err)
		}
		if fault.Is(err, fault.NotFound) {
			rand.Read(id[:])
			value, err := json.Marshal(clusterRecord{ID: hex.EncodeToString(id[:]), Created: time.Now().UTC()})
			if err != nil {
				return id, err
			}
			store.CompareAndSwap(ctx, "cluster", 0, value, 0) // whatever became of it, the next look tells
		}
		select {
		case <-ctx.Done():
			return id, ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}
