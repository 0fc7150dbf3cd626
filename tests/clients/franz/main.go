// franz-go behind the line protocol. It has no properties of its own: the options are code.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
	"turnout.tests/protocol"
)

type session struct {
	options []kgo.Opt
	admin   *kadm.Client
}

func describe(err error) protocol.Failure {
	failure := protocol.Failure{Class: fmt.Sprintf("%T", err), Message: err.Error()}
	var kafka *kerr.Error
	if errors.As(err, &kafka) {
		failure.Class, failure.Kafka = "kerr.Error", &kafka.Message
	}
	return failure
}

func patience() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 40*time.Second)
}

func (s *session) connect(c *protocol.Command) (any, error) {
	s.close(c)
	s.options = []kgo.Opt{kgo.SeedBrokers(strings.Split(c.Bootstrap, ",")...), kgo.ClientID(c.ClientID)}
	if c.Sasl != nil {
		auth := scram.Auth{User: c.Sasl.Username, Pass: c.Sasl.Password}
		switch c.Sasl.Mechanism {
		case "PLAIN":
			s.options = append(s.options, kgo.SASL(plain.Auth{User: auth.User, Pass: auth.Pass}.AsMechanism()))
		case "SCRAM-SHA-256":
			s.options = append(s.options, kgo.SASL(auth.AsSha256Mechanism()))
		case "SCRAM-SHA-512":
			s.options = append(s.options, kgo.SASL(auth.AsSha512Mechanism()))
		}
	}
	if c.TLSCA != "" {
		pem, err := os.ReadFile(c.TLSCA)
		if err != nil {
			return nil, err
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(pem)
		s.options = append(s.options, kgo.DialTLSConfig(&tls.Config{RootCAs: roots}))
	}
	client, err := kgo.NewClient(s.options...)
	if err != nil {
		return nil, err
	}
	s.admin = kadm.NewClient(client)
	return nil, nil
}

func (s *session) metadata(c *protocol.Command) (any, error) {
	ctx, cancel := patience()
	defer cancel()
	names, err := c.Names()
	if err != nil {
		return nil, err
	}
	found, err := s.admin.Metadata(ctx, names...)
	if err != nil {
		return nil, err
	}
	result := protocol.Metadata{
		Controller: &found.Controller, ClusterID: &found.Cluster, Topics: map[string]map[string]protocol.Partition{},
	}
	for _, b := range found.Brokers {
		result.Brokers = append(result.Brokers, protocol.Broker{ID: b.NodeID, Host: b.Host, Port: b.Port})
		result.Addresses = append(result.Addresses, net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port))))
	}
	for _, name := range names {
		partitions := map[string]protocol.Partition{}
		for id, p := range found.Topics[name].Partitions {
			slices.Sort(p.ISR)
			partitions[strconv.Itoa(int(id))] = protocol.Partition{Leader: p.Leader, Replicas: p.Replicas, Isr: p.ISR}
		}
		result.Topics[name] = partitions
	}
	return result, nil
}

func (s *session) createTopics(c *protocol.Command) (any, error) {
	ctx, cancel := patience()
	defer cancel()
	topics, err := c.NewTopics()
	for _, t := range topics {
		configs := map[string]*string{}
		for key, value := range t.Configs {
			configs[key] = &value
		}
		if _, err := s.admin.CreateTopic(ctx, t.Partitions, t.Replication, configs, t.Name); err != nil {
			return nil, err
		}
	}
	return nil, err
}

func (s *session) deleteTopics(c *protocol.Command) (any, error) {
	ctx, cancel := patience()
	defer cancel()
	names, err := c.Names()
	if err != nil {
		return nil, err
	}
	found, err := s.admin.DeleteTopics(ctx, names...)
	return nil, errors.Join(err, found.Error())
}

func (s *session) producer(c *protocol.Command, more ...kgo.Opt) (*kgo.Client, error) {
	options := append(slices.Clone(s.options), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.RecordDeliveryTimeout(60*time.Second), kgo.ProducerLinger(5*time.Millisecond))
	codecs := map[string]kgo.CompressionCodec{
		"gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	codec, known := codecs[c.Codec]
	if !known {
		codec = kgo.NoCompression()
	}
	options = append(options, kgo.ProducerBatchCompression(codec))
	acks := map[string]kgo.Acks{"0": kgo.NoAck(), "1": kgo.LeaderAck()}
	if acks, other := acks[c.Acks]; other {
		options = append(options, kgo.RequiredAcks(acks))
	}
	if !c.Idempotent {
		options = append(options, kgo.DisableIdempotentWrite())
	}
	if c.Size > 500_000 {
		size := int32(min(1<<30, c.Size+100_000))
		options = append(options, kgo.ProducerBatchMaxBytes(size), kgo.BrokerMaxWriteBytes(size+100_000))
	}
	return kgo.NewClient(append(options, more...)...)
}

func send(client *kgo.Client, c *protocol.Command, begin int64, written *protocol.Written) error {
	var lock sync.Mutex
	var failure error
	headers := []kgo.RecordHeader{}
	for key, value := range c.Headers {
		headers = append(headers, kgo.RecordHeader{Key: key, Value: []byte(value)})
	}
	err := c.Records(begin, func(r protocol.Record) error {
		record := &kgo.Record{Topic: c.Topic, Partition: r.Partition, Key: r.Key, Value: r.Value, Headers: headers}
		client.Produce(context.Background(), record, func(record *kgo.Record, err error) {
			lock.Lock()
			defer lock.Unlock()
			if err != nil {
				if failure == nil {
					failure = err
				}
				return
			}
			offset := record.Offset
			if c.Acks == "0" {
				offset = -1
			}
			written.Add(record.Partition, offset)
		})
		return nil
	})
	ctx, cancel := context.WithTimeout(context.Background(), 70*time.Second)
	defer cancel()
	if flushed := client.Flush(ctx); err == nil {
		err = flushed
	}
	lock.Lock()
	defer lock.Unlock()
	if failure != nil {
		return failure
	}
	return err
}

func (s *session) produce(c *protocol.Command) (any, error) {
	client, err := s.producer(c)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	written := &protocol.Written{}
	return written, send(client, c, 0, written)
}

func (s *session) transaction(c *protocol.Command) (any, error) {
	c.Idempotent = true
	client, err := s.producer(c, kgo.TransactionalID(c.TransactionalID))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	written := &protocol.Written{Outcomes: c.Outcomes}
	for index, outcome := range c.Outcomes {
		if err := client.BeginTransaction(); err != nil {
			return nil, err
		}
		if err := send(client, c, int64(index)*c.Count, written); err != nil {
			return nil, err
		}
		ctx, cancel := patience()
		err := client.EndTransaction(ctx, kgo.TransactionEndTry(outcome == "commit"))
		cancel()
		if err != nil {
			return nil, err
		}
	}
	return written, nil
}

func (s *session) consume(c *protocol.Command) (any, error) {
	start := kgo.NewOffset().AtStart()
	if c.From == "latest" {
		start = kgo.NewOffset().AtEnd()
	}
	options := append(slices.Clone(s.options), kgo.ConsumeTopics(c.Topic), kgo.ConsumeResetOffset(start),
		kgo.FetchMaxPartitionBytes(64<<20), kgo.FetchMaxBytes(64<<20),
		kgo.BrokerMaxReadBytes(512<<20))
	if c.Mode != "assign" {
		options = append(options, kgo.ConsumerGroup(c.Group), kgo.DisableAutoCommit())
	}
	if c.Isolation == "read_committed" {
		options = append(options, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	read := protocol.NewRead()
	ctx, cancel := context.WithDeadline(context.Background(), c.Deadline())
	defer cancel()
	for read.Count < c.Count && ctx.Err() == nil {
		fetches := client.PollFetches(ctx)
		for _, failed := range fetches.Errors() {
			var kafka *kerr.Error
			if errors.As(failed.Err, &kafka) && !kafka.Retriable {
				return nil, failed.Err
			}
		}
		fetches.EachRecord(func(r *kgo.Record) { read.Add(r.Partition, r.Offset, r.Key, r.Value) })
	}
	if c.Commit && read.Count > 0 {
		ctx, cancel := patience()
		defer cancel()
		if err := client.CommitUncommittedOffsets(ctx); err != nil {
			return nil, err
		}
	}
	if c.Mode != "assign" {
		client.LeaveGroup()
	}
	return read, nil
}

func (s *session) commit(c *protocol.Command) (any, error) {
	ctx, cancel := patience()
	defer cancel()
	var offsets kadm.Offsets
	for name, offset := range c.Offsets {
		partition, err := strconv.Atoi(name)
		if err != nil {
			return nil, err
		}
		offsets.AddOffset(c.Topic, int32(partition), offset, -1)
	}
	return nil, s.admin.CommitAllOffsets(ctx, c.Group, offsets)
}

func (s *session) committed(c *protocol.Command) (any, error) {
	ctx, cancel := patience()
	defer cancel()
	found, err := s.admin.FetchOffsets(ctx, c.Group)
	if err != nil {
		return nil, err
	}
	result := protocol.Offsets{Offsets: map[string]int64{}}
	found.Each(func(o kadm.OffsetResponse) {
		if o.Topic == c.Topic && o.At >= 0 {
			result.Offsets[strconv.Itoa(int(o.Partition))] = o.At
		}
	})
	return result, nil
}

func (s *session) listOffsets(c *protocol.Command) (any, error) {
	ctx, cancel := patience()
	defer cancel()
	list := s.admin.ListEndOffsets
	if c.At == "earliest" {
		list = s.admin.ListStartOffsets
	}
	found, err := list(ctx, c.Topic)
	if err = errors.Join(err, found.Error()); err != nil {
		return nil, err
	}
	result := protocol.Offsets{Offsets: map[string]int64{}}
	found.Each(func(o kadm.ListedOffset) { result.Offsets[strconv.Itoa(int(o.Partition))] = o.Offset })
	return result, nil
}

func (s *session) close(*protocol.Command) (any, error) {
	if s.admin != nil {
		s.admin.Close()
		s.admin = nil
	}
	return nil, nil
}

func main() {
	s := &session{}
	protocol.Serve("franz", "1.22.3", protocol.Handlers{
		"connect": s.connect, "metadata": s.metadata, "create_topics": s.createTopics, "delete_topics": s.deleteTopics,
		"produce": s.produce, "transaction": s.transaction, "consume": s.consume, "commit": s.commit,
		"committed": s.committed, "list_offsets": s.listOffsets, "close": s.close,
	}, describe)
}
