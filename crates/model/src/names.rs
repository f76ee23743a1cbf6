//! What a family calls its tensors.

/// Names of tensors in a checkpoint, without `.weight` and `.bias`; those of a layer are relative
/// to it. Only the names that a configuration has a use for mean anything.
///
/// Where several linear maps are listed, there is a name for each, or a single one for all of
/// them: then one tensor has the outputs of one map after those of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names {
    /// A row for each id.
    pub embedding: &'static str,
    /// A row for each position.
    pub positions: &'static str,
    /// What the number of a layer is appended to.
    pub layers: &'static str,
    /// The same, where the layers before, in and after a loop are numbered by themselves.
    pub sections: Option<[&'static str; 3]>,
    /// The norm before attention.
    pub attention_norm: &'static str,
    /// The norm of what attention gives.
    pub attention_out_norm: &'static str,
    /// Maps to query, key and value.
    pub query_key_value: &'static [&'static str],
    /// The bias of query and key, `[2, 1, heads, head_dim]`; nothing is appended to it.
    pub query_key_bias: &'static str,
    /// The gate of the rows that are added to values.
    pub value_gate: &'static [&'static str],
    /// What the number of a table of such rows is appended to.
    pub value_tables: &'static str,
    /// The norm of each query head.
    pub query_norm: &'static str,
    /// The norm of each key head.
    pub key_norm: &'static str,
    /// The map of all heads back to the residual stream.
    pub attention_out: &'static [&'static str],
    /// The norm before the feed-forward block.
    pub mlp_norm: &'static str,
    /// The norm of what the feed-forward block gives.
    pub mlp_out_norm: &'static str,
    /// Maps into the feed-forward block: gate and up, or up alone.
    pub mlp_in: &'static [&'static str],
    /// The map out of it.
    pub mlp_out: &'static [&'static str],
    /// The last norm.
    pub norm: &'static str,
    /// The head, which tied checkpoints may carry too.
    pub head: &'static str,
    /// What all names begin with, and which some checkpoints leave out everywhere.
    pub prefix: Option<&'static str>,
    /// Whether the matrices of layers are stored `[input, output]`.
    pub transposed: bool,
    /// Ends of the names of tensors that are not needed, since the configuration determines them or the
    /// logits do not depend on them: they may be there.
    pub buffers: &'static [&'static str],
}

impl Names {
    /// Llama's, which most later families took over.
    pub const LLAMA: Self = Self {
        embedding: "model.embed_tokens",
        positions: "model.embed_positions",
        layers: "model.layers",
        sections: None,
        attention_norm: "input_layernorm",
        attention_out_norm: "post_attention_layernorm",
        query_key_value: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
        query_key_bias: "self_attn.qk_bias",
        value_gate: &["attn.ve_gate"],
        value_tables: "value_embeds",
        query_norm: "self_attn.q_norm",
        key_norm: "self_attn.k_norm",
        attention_out: &["self_attn.o_proj"],
        mlp_norm: "post_attention_layernorm",
        mlp_out_norm: "post_feedforward_layernorm",
        mlp_in: &["mlp.gate_proj", "mlp.up_proj"],
        mlp_out: &["mlp.down_proj"],
        norm: "model.norm",
        head: "lm_head",
        prefix: None,
        transposed: false,
        buffers: &[".rotary_emb.inv_freq"],
    };

    /// The name of layer `layer`.
    #[must_use]
    pub fn layer(&self, layer: usize) -> String {
        format!("{}.{layer}", self.layers)
    }
}
