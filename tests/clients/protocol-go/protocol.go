// Package protocol is the line protocol of README.md, shared by the Go programs.
package protocol

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"strconv"
	"time"
)

// Sasl holds credentials.
type Sasl struct {
	Mechanism, Username, Password string
}

// Topic is one topic to create.
type Topic struct {
	Name        string
	Partitions  int32
	Replication int16
	Configs     map[string]string
}

// Command is the union of all commands' fields.
type Command struct {
	ID              int64
	Op              string
	Bootstrap       string
	ClientID        string `json:"client_id"`
	Sasl            *Sasl
	TLSCA           string `json:"tls_ca"`
	Properties      map[string]any
	Topics          json.RawMessage
	Topic           string
	Partition       *int32
	Partitions      int64
	First, Count    int64
	Size            int
	Acks, Codec     string
	Idempotent      bool
	Rate            int64
	Headers         map[string]string
	TransactionalID string `json:"transactional_id"`
	Outcomes        []string
	Mode, Group     string
	TimeoutMs       int64 `json:"timeout_ms"`
	From, Isolation string
	Commit          bool
	Offsets         map[string]int64
	At              string
}

// Names reads `topics` as a list of names.
func (c *Command) Names() (names []string, err error) {
	if len(c.Topics) > 0 {
		err = json.Unmarshal(c.Topics, &names)
	}
	return names, err
}

// NewTopics reads `topics` as a list of topics to create.
func (c *Command) NewTopics() (topics []Topic, err error) {
	err = json.Unmarshal(c.Topics, &topics)
	return topics, err
}

// Failure is an error with the library's class and Kafka's name.
type Failure struct {
	Class   string  `json:"class"`
	Kafka   *string `json:"kafka"`
	Message string  `json:"message"`
}

// Handlers answer commands by name.
type Handlers map[string]func(*Command) (any, error)

// Serve answers commands from stdin until `close` or the end of input.
func Serve(family, version string, handlers Handlers, describe func(error) Failure) {
	out := json.NewEncoder(os.Stdout)
	write := func(value any) {
		if err := out.Encode(value); err != nil {
			os.Exit(1)
		}
	}
	write(map[string]any{"ready": map[string]string{"family": family, "version": version}})
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var command Command
		reply := map[string]any{}
		err := json.Unmarshal(lines.Bytes(), &command)
		reply["id"] = command.ID
		handler := handlers[command.Op]
		var value any
		switch {
		case err != nil:
		case handler == nil:
			err = fmt.Errorf("unsupported: %s", command.Op)
		default:
			value, err = handler(&command)
		}
		if err != nil {
			reply["error"] = describe(err)
		} else if value == nil {
			reply["ok"] = struct{}{}
		} else {
			reply["ok"] = value
		}
		write(reply)
		if command.Op == "close" {
			return
		}
	}
}

// Record is one record to write.
type Record struct {
	Partition  int32
	Key, Value []byte
}

// Records calls send for each record of a produce command, paced by its rate, numbered from First + begin.
func (c *Command) Records(begin int64, send func(Record) error) error {
	start := time.Now()
	for i := int64(0); i < c.Count; i++ {
		if c.Rate > 0 {
			time.Sleep(time.Until(start.Add(time.Duration(i) * time.Second / time.Duration(c.Rate))))
		}
		number := c.First + begin + i
		key := strconv.AppendInt(nil, number, 10)
		value := append(append(make([]byte, 0, max(c.Size, len(key)+1)), key...), ':')
		value = append(value, bytes.Repeat([]byte("."), max(0, c.Size-len(value)))...)
		partition := int32(number % max(1, c.Partitions))
		if c.Partition != nil {
			partition = *c.Partition
		}
		if err := send(Record{partition, key, value}); err != nil {
			return err
		}
	}
	return nil
}

// Deadline is when a consume command's time is up.
func (c *Command) Deadline() time.Time {
	return time.Now().Add(time.Duration(c.TimeoutMs) * time.Millisecond)
}

type writtenPartition struct {
	Count       int64  `json:"count"`
	FirstOffset *int64 `json:"first_offset,omitempty"`
	LastOffset  *int64 `json:"last_offset,omitempty"`
}

// Written collects what was written, by partition.
type Written struct {
	Delivered  int64                        `json:"delivered"`
	Partitions map[string]*writtenPartition `json:"partitions"`
	Outcomes   []string                     `json:"outcomes,omitempty"`
}

// Add counts one delivered record; an offset below 0 is unknown.
func (w *Written) Add(partition int32, offset int64) {
	if w.Partitions == nil {
		w.Partitions = map[string]*writtenPartition{}
	}
	w.Delivered++
	key := strconv.Itoa(int(partition))
	p := w.Partitions[key]
	if p == nil {
		p = &writtenPartition{}
		w.Partitions[key] = p
	}
	p.Count++
	if offset < 0 {
		return
	}
	if p.FirstOffset == nil || offset < *p.FirstOffset {
		p.FirstOffset = &offset
	}
	if p.LastOffset == nil || offset > *p.LastOffset {
		p.LastOffset = &offset
	}
}

type readPartition struct {
	Count       int64  `json:"count"`
	FirstOffset int64  `json:"first_offset"`
	LastOffset  int64  `json:"last_offset"`
	InOrder     bool   `json:"in_order"`
	Checksum    string `json:"checksum"`
	crc         uint32
	last        int64
}

// Read collects what was read, by partition.
type Read struct {
	Count      int64                     `json:"count"`
	Distinct   int                       `json:"distinct"`
	Duplicates int64                     `json:"duplicates"`
	Partitions map[string]*readPartition `json:"partitions"`
	keys       map[string]bool
}

// NewRead starts a collection.
func NewRead() *Read {
	return &Read{Partitions: map[string]*readPartition{}, keys: map[string]bool{}}
}

// Add takes one record.
func (r *Read) Add(partition int32, offset int64, key, value []byte) {
	r.Count++
	if r.keys[string(key)] {
		r.Duplicates++
	}
	r.keys[string(key)] = true
	r.Distinct = len(r.keys)
	name := strconv.Itoa(int(partition))
	p := r.Partitions[name]
	if p == nil {
		p = &readPartition{FirstOffset: offset, InOrder: true, last: -1}
		r.Partitions[name] = p
	}
	p.Count++
	p.LastOffset = offset
	if number, err := strconv.ParseInt(string(key), 10, 64); err == nil && number >= 0 {
		p.InOrder = p.InOrder && number > p.last
		p.last = number
	}
	for _, part := range [][]byte{key, {0}, value, {0}} {
		p.crc = crc32.Update(p.crc, crc32.IEEETable, part)
	}
	p.Checksum = fmt.Sprintf("%08x", p.crc)
}

// Broker is a broker as a client was told.
type Broker struct {
	ID   int32  `json:"id"`
	Host string `json:"host"`
	Port int32  `json:"port"`
}

// Partition is a partition as a client was told.
type Partition struct {
	Leader   int32   `json:"leader"`
	Replicas []int32 `json:"replicas"`
	Isr      []int32 `json:"isr"`
}

// Metadata is the result of `metadata`.
type Metadata struct {
	Brokers    []Broker                        `json:"brokers"`
	Addresses  []string                        `json:"addresses"`
	Controller *int32                          `json:"controller,omitempty"`
	ClusterID  *string                         `json:"cluster_id,omitempty"`
	Topics     map[string]map[string]Partition `json:"topics"`
}

// Offsets is the result of `committed` and `list_offsets`.
type Offsets struct {
	Offsets map[string]int64 `json:"offsets"`
}
